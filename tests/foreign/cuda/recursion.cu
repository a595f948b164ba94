// Functions that call themselves: Fibonacci numbers, and quicksort of an array in local memory.
__device__ __noinline__ unsigned fibonacci(unsigned n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __noinline__ void quicksort(int* v, int low, int high) {
    if (low >= high) return;
    int pivot = v[(low + high) / 2], i = low, j = high;
    while (i <= j) {
        while (v[i] < pivot) i++;
        while (v[j] > pivot) j--;
        if (i <= j) {
            int t = v[i];
            v[i++] = v[j];
            v[j--] = t;
        }
    }
    quicksort(v, low, j);
    quicksort(v, i, high);
}
extern "C" __global__ void recursion(const int* x, unsigned* y) {
    int values[16], i = threadIdx.x;
    for (int k = 0; k < 16; k++) values[k] = x[(i * 5 + k * k) % 64];
    quicksort(values, 0, 15);
    unsigned sum = fibonacci((x[i] + 125) % 12);
    for (int k = 0; k < 16; k++) sum = sum * 31 + values[k];
    y[i] = sum;
}
