// Softmax of each row, one block a row.
extern "C" __global__ void softmax(const float* x, float* y, int n) {
    __shared__ float part[8];
    const float* row = x + blockIdx.x * n;
    float most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;
    __syncthreads();
    for (int w = 0; w < blockDim.x / 32; w++) most = fmaxf(most, part[w]);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - most);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < blockDim.x / 32; w++) sum += part[w];
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] - most) / sum;
}
