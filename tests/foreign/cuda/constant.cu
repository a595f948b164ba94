// A polynomial whose coefficients are in constant memory, by a function that is called.
__constant__ float coefficients[4] = {1.0f, -0.5f, 0.25f, 2.0f};
__device__ __noinline__ float polynomial(float t) {
    float value = 0;
    for (int i = 3; i >= 0; i--) value = value * t + coefficients[i];
    return value;
}
extern "C" __global__ void constant(const float* x, float* y) { y[threadIdx.x] = polynomial(x[threadIdx.x]); }
