// A of 16 x 32 floats times B of 32 x 8, which is stored by columns, both rounded to tf32.
extern "C" __global__ void mma_tf32(const float* a, const float* b, float* c) {
    int lane = threadIdx.x, group = lane / 4, quad = lane % 4;
    auto tf32 = [](float x) {
        unsigned y;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
        return y;
    };
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (int k = 0; k < 32; k += 8) {
        unsigned a0 = tf32(a[group * 32 + k + quad]), a1 = tf32(a[(group + 8) * 32 + k + quad]);
        unsigned a2 = tf32(a[group * 32 + k + quad + 4]), a3 = tf32(a[(group + 8) * 32 + k + quad + 4]);
        unsigned b0 = tf32(b[group * 32 + k + quad]), b1 = tf32(b[group * 32 + k + quad + 4]);
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    c[group * 8 + quad * 2] = d0;
    c[group * 8 + quad * 2 + 1] = d1;
    c[(group + 8) * 8 + quad * 2] = d2;
    c[(group + 8) * 8 + quad * 2 + 1] = d3;
}
