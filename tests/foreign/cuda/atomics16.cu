// Atomic sums of pairs of f16 and of bf16, and a maximum of 16 bits by compare and swap.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void atomics16(const unsigned* x, unsigned* y) {
    unsigned mine = x[blockIdx.x * blockDim.x + threadIdx.x];
    atomicAdd((__half2*)y + mine % 4, __floats2half2_rn(1.0f, -0.5f));
    atomicAdd((__half*)(y + 4), __float2half(0.25f));
    atomicAdd((__nv_bfloat162*)y + 5 + mine % 2, __floats2bfloat162_rn(1.0f, 0.5f));
    unsigned short* most = (unsigned short*)(y + 7) + mine % 2;
    unsigned short old = *(volatile unsigned short*)most, before;
    do {
        before = old;
        if (before >= mine) break;
        old = atomicCAS(most, before, (unsigned short)mine);
    } while (old != before);
}
