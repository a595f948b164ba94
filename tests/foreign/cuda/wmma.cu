// C = A B^T of n x n halves on tensor cores, one warp a tile.
#include <mma.h>
using namespace nvcuda;
extern "C" __global__ void wmma_matmul(const half* a, const half* b, float* c, int n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    int row = blockIdx.y * 16, column = blockIdx.x * 16;
    for (int k = 0; k < n; k += 16) {
        wmma::load_matrix_sync(fa, a + row * n + k, n);
        wmma::load_matrix_sync(fb, b + column * n + k, n);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(c + row * n + column, fc, n, wmma::mem_row_major);
}
