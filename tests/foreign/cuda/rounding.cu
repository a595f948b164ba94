// Arithmetic in each direction of rounding, f32 and f64.
extern "C" __global__ void rounding(const float* x, float* y, double* z) {
    int i = threadIdx.x;
    float a = x[i] / 3, b = x[i ^ 1] / 7 + 0.01f, c = x[i ^ 2] * 1e-4f;
    float singles[] = {__fadd_rz(a, b),     __fadd_rd(a, b), __fadd_ru(a, b),     __fsub_rz(a, b),     __fmul_rz(a, b),    __fmul_rd(a, b),
                       __fmul_ru(a, b),     __fdiv_rz(a, b), __fdiv_rd(a, b),     __fdiv_ru(a, b),     __fmaf_rz(a, b, c), __fmaf_rd(a, b, c),
                       __fmaf_ru(a, b, c),  __frcp_rz(b),    __frcp_ru(b),        __fsqrt_rd(fabsf(a)), __fsqrt_ru(fabsf(a))};
    double p = a, q = b, r = c * 1e-9;
    p += 1e-12 * i;
    double doubles[] = {__dadd_rz(p, r),   __dadd_rd(p, r),   __dadd_ru(p, r),      __dmul_rz(p, q), __dmul_rd(p, q), __dmul_ru(p, q), __ddiv_rz(p, q),
                        __ddiv_rd(p, q),   __ddiv_ru(p, q),   __fma_rz(p, q, r),    __fma_rd(p, q, r), __fma_ru(p, q, r), __drcp_rd(q), __drcp_ru(q),
                        __dsqrt_rz(fabs(p)), __dsqrt_ru(fabs(p))};
    for (int k = 0; k < 17; k++) y[k * 64 + i] = singles[k];
    for (int k = 0; k < 16; k++) z[k * 64 + i] = doubles[k];
}
