// Bit fields, shifts of pairs of words and permutations of bytes.
extern "C" __global__ void fields(const unsigned* x, unsigned* y) {
    unsigned i = threadIdx.x, a = x[i] * 2654435761u, b = x[i ^ 1] * 2246822519u, n = x[i ^ 2] % 40, results[16];
    asm("bfe.s32 %0, %1, %2, 9;" : "=r"(results[0]) : "r"(a), "r"(n));
    asm("bfi.b32 %0, %1, %2, %3, 7;" : "=r"(results[1]) : "r"(a), "r"(b), "r"(n));
    asm("szext.clamp.s32 %0, %1, %2;" : "=r"(results[2]) : "r"(a), "r"(n));
    asm("szext.wrap.u32 %0, %1, %2;" : "=r"(results[3]) : "r"(a), "r"(n));
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(results[4]) : "r"(n), "r"(i));
    asm("bmsk.wrap.b32 %0, %1, %2;" : "=r"(results[5]) : "r"(n), "r"(i));
    results[6] = __fns(a, n % 32, (int)(i % 9) - 4);
    results[7] = __funnelshift_l(a, b, n) ^ __funnelshift_rc(a, b, n);
    results[8] = __byte_perm(a, b, 0x7b21 ^ i);
    asm("prmt.b32.f4e %0, %1, %2, %3;" : "=r"(results[9]) : "r"(a), "r"(b), "r"(i));
    asm("prmt.b32.b4e %0, %1, %2, %3;" : "=r"(results[10]) : "r"(a), "r"(b), "r"(i));
    asm("prmt.b32.rc8 %0, %1, %2, %3;" : "=r"(results[11]) : "r"(a), "r"(b), "r"(i));
    asm("prmt.b32.ecl %0, %1, %2, %3;" : "=r"(results[12]) : "r"(a), "r"(b), "r"(i));
    asm("prmt.b32.ecr %0, %1, %2, %3;" : "=r"(results[13]) : "r"(a), "r"(b), "r"(i));
    asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(results[14]) : "r"(a), "r"(b), "r"(i));
    asm("lop3.b32 %0, %1, %2, %3, 0xe8;" : "=r"(results[15]) : "r"(a), "r"(b), "r"(n));
    for (int k = 0; k < 16; k++) y[k * 64 + i] = results[k];
}
