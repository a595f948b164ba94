// Each point with its four neighbours, zero beyond the edges, through a tile with a halo.
extern "C" __global__ void stencil(const float* x, float* y, int rows, int columns) {
    __shared__ float tile[18][18];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    auto at = [&](int i, int j) { return i >= 0 && i < rows && j >= 0 && j < columns ? x[i * columns + j] : 0.0f; };
    int i = threadIdx.y + 1, j = threadIdx.x + 1;
    tile[i][j] = at(row, column);
    if (threadIdx.y == 0) tile[0][j] = at(row - 1, column);
    if (threadIdx.y == 15) tile[17][j] = at(row + 1, column);
    if (threadIdx.x == 0) tile[i][0] = at(row, column - 1);
    if (threadIdx.x == 15) tile[i][17] = at(row, column + 1);
    __syncthreads();
    if (row < rows && column < columns)
        y[row * columns + column] = 0.5f * tile[i][j] + 0.125f * (tile[i - 1][j] + tile[i + 1][j] + tile[i][j - 1] + tile[i][j + 1]);
}
