// Sorts the numbers of a block by a bitonic network in shared memory.
extern "C" __global__ void bitonic(const int* x, int* y) {
    __shared__ int keys[512];
    int i = threadIdx.x;
    keys[i] = x[i];
    for (int k = 2; k <= 512; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            __syncthreads();
            int other = i ^ j, mine = keys[i], theirs = keys[other];
            __syncthreads();
            bool smaller = (i < other) == ((i & k) == 0);
            keys[i] = smaller ? min(mine, theirs) : max(mine, theirs);
        }
    __syncthreads();
    y[i] = keys[i];
}
