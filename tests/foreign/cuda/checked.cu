// An assertion that holds.
#include <cassert>
extern "C" __global__ void checked(const unsigned* x, unsigned* y, unsigned most) {
    unsigned v = x[threadIdx.x];
    assert(v <= most && "the numbers are small");
    y[threadIdx.x] = v + 1;
}
