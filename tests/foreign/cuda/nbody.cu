// Accelerations of bodies by gravity, through tiles in shared memory.
extern "C" __global__ void nbody(const float4* bodies, float4* y, int n) {
    __shared__ float4 tile[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    float4 mine = bodies[i], sum = make_float4(0, 0, 0, 0);
    for (int first = 0; first < n; first += 64) {
        tile[threadIdx.x] = bodies[first + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 64; k++) {
            float dx = tile[k].x - mine.x, dy = tile[k].y - mine.y, dz = tile[k].z - mine.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 0.25f);
            float force = fabsf(tile[k].w) * inverse * inverse * inverse;
            sum.x += dx * force;
            sum.y += dy * force;
            sum.z += dz * force;
        }
        __syncthreads();
    }
    y[i] = sum;
}
