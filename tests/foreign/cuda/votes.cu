// What the lanes of a warp and the threads of a block tell each other.
extern "C" __global__ void votes(const unsigned* x, unsigned* y) {
    unsigned i = threadIdx.x, v = x[i], sum = 0;
    bool odd = v & 1;
    sum += __syncthreads_count(odd) + 1000 * __syncthreads_and(v > 0) + 2000 * __syncthreads_or(v == 251);
    sum ^= __ballot_sync(~0u, odd) + __any_sync(~0u, v == 7) + 2 * __all_sync(~0u, v < 300);
    sum += __match_any_sync(~0u, v % 5);
    int same = 0;
    sum += __match_all_sync(~0u, i / 32, &same) + same;
    sum += __reduce_add_sync(~0u, v) ^ __reduce_max_sync(~0u, (int)v) ^ __reduce_xor_sync(~0u, v << 8);
    if (odd) sum += __popc(__activemask()) > 0;
    y[i] = sum;
}
