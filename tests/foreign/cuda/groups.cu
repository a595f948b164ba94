// Cooperative groups: sums of tiles of eight lanes, and of the lanes that are together in a branch.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const unsigned* x, unsigned* y) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
    unsigned v = x[block.thread_rank()];
    unsigned sum = cg::reduce(tile, v, cg::plus<unsigned>());
    if (v & 1) {
        cg::coalesced_group together = cg::coalesced_threads();
        sum += 1000 * together.size() + 100000 * together.thread_rank();
    }
    tile.sync();
    y[block.thread_rank()] = sum + 1000000 * tile.shfl(v, 3);
}
