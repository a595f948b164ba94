// What changes the caches alone: policies, prefetches and discards; and which memory a pointer is in.
__constant__ float table[1] = {5};
extern "C" __global__ void hints(const float* x, float* y, float* scratch) {
    __shared__ float here;
    int i = threadIdx.x;
    unsigned long long policy;
    float v, local[4] = {1, 2, 3, 4};
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(x + i), "l"(policy));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(x + i));
    asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(x));
    if (i == 0) here = 7;
    scratch[i] = v;
    __syncthreads();
    if (i == 0) asm volatile("discard.global.L2 [%0], 128;" ::"l"(scratch) : "memory");
    const void* p = i % 4 == 0 ? (const void*)x : i % 4 == 1 ? (const void*)&here : i % 4 == 2 ? (const void*)&local[v > 0] : (const void*)table;
    float where = 1.0f * __isGlobal(p) + 2.0f * __isShared(p) + 4.0f * __isLocal(p) + 8.0f * __isConstant(p);
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(y + i), "f"(v + where + *(const float*)p), "l"(policy) : "memory");
}
