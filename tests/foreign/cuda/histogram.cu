// Counts bytes with atomics in shared and then in global memory.
extern "C" __global__ void histogram(const unsigned char* x, unsigned* counts, int n) {
    __shared__ unsigned bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i]], 1);
    __syncthreads();
    atomicAdd(&counts[threadIdx.x], bins[threadIdx.x]);
}
