// Inclusive prefix sums of one block, by shuffles and shared memory.
extern "C" __global__ void scan(const int* x, int* y) {
    __shared__ int warps[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sum = x[threadIdx.x];
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        int total = warps[lane];
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(~0u, total, step);
            if (lane >= step) total += other;
        }
        warps[lane] = total;
    }
    __syncthreads();
    y[threadIdx.x] = sum + (warp > 0 ? warps[warp - 1] : 0);
}
