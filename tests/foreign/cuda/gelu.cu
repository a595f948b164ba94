// The tanh form of GELU, four elements a thread.
extern "C" __global__ void gelu(const float4* x, float4* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 v = x[i];
    auto f = [](float t) { return 0.5f * t * (1.0f + tanhf(0.7978845608f * (t + 0.044715f * t * t * t))); };
    y[i] = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
}
