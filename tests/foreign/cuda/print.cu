// Every format of numbers and text, a line a thread; and a line without any.
#include <cstdio>
extern "C" __global__ void print(const float* x, int* y) {
    int i = threadIdx.x;
    const char* names[] = {"zero", "one", "two"};
    printf("thread %d of %u: %6.2f|%-8.3e|%g %s 0x%llx %c %+04hd %5s%%\n", i, blockDim.x, x[i], x[i] * 100, x[i] / 3, names[i % 3],
           0x123456789abcdefull * (i + 1), 'a' + i, (short)-i, "x");
    if (i == 0) printf("that is all\n");
    y[i] = i;
}
