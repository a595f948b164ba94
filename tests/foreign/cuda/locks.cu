// A sum and a count behind a lock that every thread takes: y[0] is the lock.
extern "C" __global__ void locks(const unsigned* x, unsigned* y) {
    volatile unsigned* guarded = y;
    unsigned mine = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (bool done = false; !done;) {
        if (atomicCAS(&y[0], 0, 1) == 0) {
            __threadfence();
            guarded[1] = guarded[1] + mine;
            guarded[2] = guarded[2] + 1;
            __threadfence();
            atomicExch(&y[0], 0);
            done = true;
        }
    }
}
