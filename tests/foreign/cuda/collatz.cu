// Steps of the Collatz sequence: a loop that each lane leaves at another time.
extern "C" __global__ void collatz(const unsigned* x, unsigned* steps) {
    unsigned long long value = x[threadIdx.x];
    unsigned count = 0;
    while (value != 1) {
        value = value % 2 ? 3 * value + 1 : value / 2;
        count++;
    }
    steps[threadIdx.x] = count;
}
