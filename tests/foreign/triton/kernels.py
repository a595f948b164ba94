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


@triton.jit
def dot_any(a, b, c, n, BLOCK: tl.constexpr, STEP: tl.constexpr, TOTAL: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    k = tl.arange(0, STEP)
    total = tl.zeros((BLOCK, BLOCK), TOTAL)
    for start in range(0, n, STEP):
        left = tl.load(a + i * n + start + k[None, :])
        right = tl.load(b + (start + k[:, None]) * n + j)
        total = tl.dot(left, right, total, out_dtype=TOTAL)
    tl.store(c + i * n + j, total)


@triton.jit
def attention(q, k, v, o, n, scale, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, D)
    rows = tl.load(q + row[:, None] * D + column[None, :])
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    sum = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, D), tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * ROWS, KEYS):
        key = start + tl.arange(0, KEYS)
        keys = tl.load(k + key[None, :] * D + column[:, None])
        scores = tl.dot(rows, keys) * (scale * 1.44269504)
        scores = tl.where(row[:, None] >= key[None, :], scores, -float("inf"))
        new = tl.maximum(most, tl.max(scores, 1))
        terms = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(most - new)
        sum = sum * shrink + tl.sum(terms, 1)
        values = tl.load(v + key[:, None] * D + column[None, :])
        out = tl.dot(terms.to(tl.float16), values, out * shrink[:, None])
        most = new
    tl.store(o + row[:, None] * D + column[None, :], out / sum[:, None])


@triton.jit
def running(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def sorted(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)))


@triton.jit
def bins(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.histogram(tl.load(x + at), 256)
    tl.atomic_add(y + tl.arange(0, 256), count)


@triton.jit
def gather(table, picks, y, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(picks + tl.program_id(0)) % 16
    total = tl.zeros((BLOCK,), tl.float32)
    while row > 0:
        total += tl.load(table + row * columns + at, at < columns, other=0.0)
        row //= 2
    tl.store(y + tl.program_id(0) * columns + at, total, at < columns)


@triton.jit
def random(y, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.randint(seed, at))


@triton.jit
def extremes(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0)
    tl.atomic_max(y + value % 8, value, at < n)
    tl.atomic_xor(y + 8 + value % 8, value, at < n)
    if tl.atomic_cas(y + 16, 0, 1) == 0:
        tl.store(y + 17, tl.num_programs(0))
