// Each row with mean 0 and variance 1, a warp a row, mean and variance in one pass (Welford, and Chan's merge).
extern "C" __global__ void standardize(const float* x, float* y, int n) {
    const float* row = x + blockIdx.x * n;
    float mean = 0, spread = 0, count = 0;
    for (int i = threadIdx.x; i < n; i += 32) {
        count += 1;
        float step = row[i] - mean;
        mean += step / count;
        spread += step * (row[i] - mean);
    }
    for (int step = 16; step > 0; step /= 2) {
        float other_mean = __shfl_xor_sync(~0u, mean, step), other_count = __shfl_xor_sync(~0u, count, step);
        float apart = other_mean - mean, all = count + other_count;
        spread += __shfl_xor_sync(~0u, spread, step) + apart * apart * count * other_count / all;
        mean = (count * mean + other_count * other_mean) / all;
        count = all;
    }
    float scale = rsqrtf(spread / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = (row[i] - mean) * scale;
}
