// A of 16 x 32 signed bytes times B of 32 x 8, which is stored by columns, in each shape of mma that there is; and of
// unsigned bytes, whose sums do not fit 32 bits, with and without saturation.
extern "C" __global__ void mma_int8(const int* a, const int* b, int* c) {
    int lane = threadIdx.x, group = lane / 4, quad = lane % 4;
    int a0 = a[group * 8 + quad], a1 = a[(group + 8) * 8 + quad], a2 = a[group * 8 + quad + 4], a3 = a[(group + 8) * 8 + quad + 4];
    int b0 = b[group * 8 + quad], b1 = b[group * 8 + quad + 4];
    int d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    auto put = [&](int at) {
        c[at + group * 8 + quad * 2] = d0;
        c[at + group * 8 + quad * 2 + 1] = d1;
        c[at + (group + 8) * 8 + quad * 2] = d2;
        c[at + (group + 8) * 8 + quad * 2 + 1] = d3;
    };
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    put(0);
    d0 = d1 = d2 = d3 = 0;
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(a0), "r"(a1), "r"(b0));
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(a2), "r"(a3), "r"(b1));
    put(128);
    d0 = d1 = d2 = d3 = 0;
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+r"(d0), "+r"(d1) : "r"(a0), "r"(b0));
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" : "+r"(d0), "+r"(d1) : "r"(a2), "r"(b1));
    put(256);
    d0 = d1 = d2 = d3 = 0x7fffff00;
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    put(384);
    d0 = d1 = d2 = d3 = 0x7fffff00;
    asm("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d0), "+r"(d1), "+r"(d2), "+r"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    put(512);
}
