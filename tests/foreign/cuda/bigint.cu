// Sums, differences and products of numbers of 128 bits, word by word with carries.
extern "C" __global__ void bigint(const uint4* x, uint4* y) {
    uint4 a = x[threadIdx.x], b = x[threadIdx.x ^ 1], s, d, p;
    asm("add.cc.u32 %0, %4, %8; addc.cc.u32 %1, %5, %9; addc.cc.u32 %2, %6, %10; addc.u32 %3, %7, %11;"
        : "=r"(s.x), "=r"(s.y), "=r"(s.z), "=r"(s.w) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w));
    asm("sub.cc.u32 %0, %4, %8; subc.cc.u32 %1, %5, %9; subc.cc.u32 %2, %6, %10; subc.u32 %3, %7, %11;"
        : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(b.z), "r"(b.w));
    asm("{ mul.lo.u32 %0, %4, %6; mul.hi.u32 %1, %4, %6;\n"
        "mad.lo.cc.u32 %1, %4, %7, %1; madc.hi.u32 %2, %4, %7, 0;\n"
        "mad.lo.cc.u32 %1, %5, %6, %1; madc.hi.cc.u32 %2, %5, %6, %2; addc.u32 %3, 0, 0;\n"
        "mad.lo.cc.u32 %2, %5, %7, %2; madc.hi.u32 %3, %5, %7, %3; }"
        : "=&r"(p.x), "=&r"(p.y), "=&r"(p.z), "=&r"(p.w) : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
    unsigned __int128 left = (unsigned __int128)a.w << 96 | (unsigned __int128)a.z << 64 | (unsigned __int128)a.y << 32 | a.x;
    unsigned __int128 shifted = left * 1000003 + (left >> 77);
    y[4 * threadIdx.x] = s;
    y[4 * threadIdx.x + 1] = d;
    y[4 * threadIdx.x + 2] = p;
    y[4 * threadIdx.x + 3] = make_uint4(shifted, shifted >> 32, shifted >> 64, shifted >> 96);
}
