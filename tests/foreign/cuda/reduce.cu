// The sum of all elements: shuffles in a warp, shared memory in a block, an atomic across blocks.
extern "C" __global__ void reduce(const float* x, float* sum, int n) {
    __shared__ float warps[32];
    float mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) mine += x[i];
    for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(~0u, mine, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
        for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(~0u, mine, step);
        if (threadIdx.x == 0) atomicAdd(sum, mine);
    }
}
