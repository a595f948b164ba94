"""Triton kernels, written for these tests."""
import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def row_softmax(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, at < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row + at, value / tl.sum(value, 0), at < n)


@triton.jit
def layer_norm(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, at < n, other=0.0)
    centred = tl.where(at < n, value - tl.sum(value, 0) / n, 0.0)
    tl.store(y + row + at, centred * tl.rsqrt(tl.sum(centred * centred, 0) / n + 1e-5), at < n)


@triton.jit
def swap_axes(x, y, rows, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    tile = tl.load(x + i * columns + j, (i < rows) & (j < columns))
    tl.store(y + tl.trans(j) * rows + tl.trans(i), tl.trans(tile), (tl.trans(i) < rows) & (tl.trans(j) < columns))


@triton.jit
def dot(a, b, c, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, STEP)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, STEP):
        left = tl.load(a + i * n + start + k[None, :])
        right = tl.load(b + (start + k[:, None]) * n + j)
        total = tl.dot(left, right, total)
    tl.store(c + i * n + j, total)


@triton.jit
def total(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y, tl.sum(tl.load(x + at, at < n, other=0.0), 0))
