"""Kernels for Numba, written for these tests: each function, and the types of its parameters."""
import math

from numba import cuda, float32, float64, int32, uint8, uint32


def axpy(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


def logistic(x, y):
    """As a ufunc makes it: one element a thread, in f64."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] = 1 / (1 + math.exp(-x[i])) + math.sqrt(abs(x[i]))


def floors(x, y, d, m):
    """Division and remainder as Python has them."""
    i = cuda.grid(1)
    if i < x.size:
        d[i] = x[i] // (y[i] | 1)
        m[i] = x[i] % (y[i] | 1)


def block_sum(x, y):
    part = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    part[t] = 0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        part[t] += x[i]
    step = 64
    while step > 0:
        cuda.syncthreads()
        if t < step:
            part[t] += part[t + step]
        step //= 2
    if t == 0:
        cuda.atomic.add(y, 0, part[0])


def counts(x, y):
    bins = cuda.shared.array(256, uint32)
    t = cuda.threadIdx.x
    bins[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(bins, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(y, t, bins[t])


def product(a, b, c):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    row, column = cuda.blockIdx.y * 16 + i, cuda.blockIdx.x * 16 + j
    total = float32(0)
    for k in range(0, a.shape[1], 16):
        left[i, j] = a[row, k + j]
        right[i, j] = b[k + i, column]
        cuda.syncthreads()
        for l in range(16):
            total += left[i, l] * right[l, j]
        cuda.syncthreads()
    c[row, column] = total


def insertion(x, y):
    """Each thread sorts its eight numbers in local memory."""
    i = cuda.grid(1)
    mine = cuda.local.array(8, int32)
    for k in range(8):
        at = k
        value = x[i * 8 + k]
        while at > 0 and mine[at - 1] > value:
            mine[at] = mine[at - 1]
            at -= 1
        mine[at] = value
    for k in range(8):
        y[i * 8 + k] = mine[k]


KERNELS = [
    (axpy, (float32, float32[::1], float32[::1])),
    (logistic, (float64[::1], float64[::1])),
    (floors, (int32[::1], int32[::1], int32[::1], int32[::1])),
    (block_sum, (float32[::1], float32[::1])),
    (counts, (uint8[::1], uint32[::1])),
    (product, (float32[:, ::1], float32[:, ::1], float32[:, ::1])),
    (insertion, (int32[::1], int32[::1])),
]
