// Copies through shared memory with cp.async in two stages, and doubles.
#include <cuda_pipeline.h>
extern "C" __global__ void pipeline(const float4* x, float4* y, int n) {
    __shared__ float4 stage[2][128];
    int tiles = n / 128;
    __pipeline_memcpy_async(&stage[0][threadIdx.x], &x[threadIdx.x], 16);
    __pipeline_commit();
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles) __pipeline_memcpy_async(&stage[(t + 1) % 2][threadIdx.x], &x[(t + 1) * 128 + threadIdx.x], 16);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        float4 v = stage[t % 2][127 - threadIdx.x];
        __syncthreads();
        y[t * 128 + 127 - threadIdx.x] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
    }
}
