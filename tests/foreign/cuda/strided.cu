// A copy of a tensor of three dimensions with strides of 64 bits, negative ones among them.
struct Strides {
    long long of[3];
};
extern "C" __global__ void strided(const unsigned short* x, unsigned short* y, int4 shape, Strides from, Strides to) {
    int count = shape.x * shape.y * shape.z;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
        int k = at % shape.z, j = at / shape.z % shape.y, i = at / shape.z / shape.y;
        y[i * to.of[0] + j * to.of[1] + k * to.of[2]] = x[shape.w + i * from.of[0] + j * from.of[1] + k * from.of[2]];
    }
}
