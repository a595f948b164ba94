// Functions of f64, one after another.
extern "C" __global__ void math64(const double* x, double* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i], w = fabs(v) + 0.5;
    double results[] = {exp(v), log(w), sin(50 * v), cos(v), sqrt(w), rsqrt(w), 1 / w, v / 3, pow(w, 1.7), tanh(v), cbrt(v), atan2(v, w)};
    for (int k = 0; k < 12; k++) y[k * n + i] = results[k];
}
