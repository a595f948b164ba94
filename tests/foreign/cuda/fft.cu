// The discrete Fourier transform of 256 numbers: radix 2, in place in shared memory.
extern "C" __global__ void fft(const float* x, float2* y) {
    __shared__ float2 v[256];
    int i = threadIdx.x;
    v[__brev(i) >> 24] = make_float2(x[i], 0);
    v[__brev(i + 128) >> 24] = make_float2(x[i + 128], 0);
    for (int half = 1; half < 256; half *= 2) {
        __syncthreads();
        int k = i % half, at = i / half * 2 * half + k;
        float sine, cosine;
        sincospif(-(float)k / half, &sine, &cosine);
        float2 a = v[at], b = v[at + half];
        float2 t = make_float2(b.x * cosine - b.y * sine, b.x * sine + b.y * cosine);
        v[at] = make_float2(a.x + t.x, a.y + t.y);
        v[at + half] = make_float2(a.x - t.x, a.y - t.y);
    }
    __syncthreads();
    y[i] = v[i];
    y[i + 128] = v[i + 128];
}
