// Iterations until a point leaves the circle of radius 2.
extern "C" __global__ void mandelbrot(unsigned* counts, int width, int height) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= width || j >= height) return;
    float cr = __fmaf_rn((float)i, 3.0f / 64, -2.25f), ci = __fmaf_rn((float)j, 2.0f / 32, -1.0f), r = 0, s = 0;
    unsigned count = 0;
    while (count < 100 && __fmaf_rn(r, r, __fmul_rn(s, s)) <= 4) {
        float t = __fadd_rn(__fmaf_rn(r, r, -__fmul_rn(s, s)), cr);
        s = __fmaf_rn(2 * r, s, ci);
        r = t;
        count++;
    }
    counts[j * width + i] = count;
}
