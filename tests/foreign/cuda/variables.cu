// Variables of the module: a ticket that the last block resets, a table in constant memory, pointers to others.
__device__ unsigned ticket;
__device__ unsigned partial[8] = {1000, 2000, 3000};
__device__ unsigned* last = &partial[7];
__constant__ unsigned short weights[4] = {1, 10, 100, 1000};
extern "C" __global__ void variables(const unsigned* x, unsigned* y) {
    __shared__ bool is_last;
    unsigned v = x[blockIdx.x * 32 + threadIdx.x] * weights[threadIdx.x % 4];
    for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
    if (threadIdx.x == 0) {
        last[-(int)blockIdx.x] += v;
        __threadfence();
        is_last = atomicAdd(&ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x < 8) {
        __threadfence();
        y[threadIdx.x] = ((volatile unsigned*)partial)[threadIdx.x];
        if (threadIdx.x == 0) atomicExch(&ticket, 0);
    }
}
