// Each row divided by its root mean square, in f64 sums.
extern "C" __global__ void normalize(const float* x, float* y, int rows, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[row * n + i] * x[row * n + i];
    float scale = rsqrtf((float)(sum / n) + 1e-5f);
    for (int i = 0; i < n; i++) y[row * n + i] = x[row * n + i] * scale;
}
