// Dot products of 16-bit and 8-bit numbers, of every sign.
extern "C" __global__ void dot2(const int* x, const int* y, int* z) {
    int i = threadIdx.x, a = x[i] * 65599, b = y[i] * 40503, c = x[i ^ 1];
    z[i] = __dp2a_lo(a, b, c);
    z[i + 64] = __dp2a_hi(a, b, c);
    z[i + 128] = __dp2a_lo((unsigned)a, (unsigned)b, (unsigned)c);
    z[i + 192] = __dp4a((unsigned)a, (unsigned)b, (unsigned)c);
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(z[i + 256]) : "r"(a), "r"(b), "r"(c));
    asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(z[i + 320]) : "r"(a), "r"(b), "r"(c));
}
