// Each row of 128 numbers to bytes, and the scale of the row behind it; a warp a row, four numbers a lane.
extern "C" __global__ void quantize(const float4* x, unsigned* y) {
    float4 v = x[blockIdx.x * 32 + threadIdx.x];
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    float scale = most / 127.0f;
    auto byte = [&](float t) { return (unsigned)max(-127, min(127, __float2int_rn(t / scale))) & 255u; };
    y[blockIdx.x * 33 + threadIdx.x] = byte(v.x) | byte(v.y) << 8 | byte(v.z) << 16 | byte(v.w) << 24;
    if (threadIdx.x == 0) y[blockIdx.x * 33 + 32] = __float_as_uint(scale);
}
