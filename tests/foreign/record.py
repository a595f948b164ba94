"""Runs the kernels of `ptx` on a card, through the driver, as `cases.txt` says, and records what they compute.

    python record.py OUT

It needs numpy and a driver, and no toolkit. OUT gets the outputs of each kernel as they are in memory (NAME.bin), the
hashes of them all (sums.txt) and what the kernels print (NAME.txt).
"""
import ctypes
import math
import os
import pathlib
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).parent
libc = ctypes.CDLL(None)


def ramp(count, seed):
    return (np.arange(count, dtype=np.int64) * 37 + seed * 101 + 11) % 251


def values(kind, count, seed):
    """The bytes of a buffer of the ramp; floats are between -2 and 2, exact in bf16."""
    r = ramp(count, seed)
    floats = (r - 125) / 64
    numbers = {
        "f64": lambda: floats,
        "f32": lambda: floats.astype(np.float32),
        "f16": lambda: floats.astype(np.float16),
        "bf16": lambda: (floats.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "i32": lambda: (r - 125).astype(np.int32),
        "i16": lambda: (r - 125).astype(np.int16),
        "i8": lambda: (r - 125).astype(np.int8),
        "u32": lambda: (r + 1).astype(np.uint32),
        "u8": lambda: r.astype(np.uint8),
        "u64": lambda: (r + 1).astype(np.uint64) * np.uint64(0x10001000100003),
        "zero": lambda: np.zeros(count, np.uint32),
    }
    return numbers[kind]().tobytes()


def buffer(text):
    """TYPE*DIMENSIONS@SEED: its bytes and dimensions."""
    kind, rest = text.split("*")
    dims, _, seed = rest.partition("@")
    dims = [int(dim) for dim in dims.split("x")]
    return values(kind, math.prod(dims), int(seed or 0)), dims


def struct(text):
    parts = []
    for part in text.strip("()").split(","):
        kind, equals, number = part.partition("=")
        width = int(kind[1:]) // 8 if equals else 0
        parts.append(int(number).to_bytes(width, "little", signed=True) if equals else buffer(part)[0])
    return b"".join(parts)


cuda = ctypes.CDLL("libcuda.so.1")


def check(code):
    if code != 0:
        raise RuntimeError(f"driver error {code}")


def word(number):
    return number.to_bytes(8, "little")


class Run:
    """One launch: its memory and its parameters."""

    def __init__(self):
        self.params, self.outputs, self.memory = [], [], []

    def device(self, data, is_output):
        address = ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(len(data))))
        check(cuda.cuMemcpyHtoD_v2(address, data, ctypes.c_size_t(len(data))))
        self.memory.append(address)
        if is_output:
            self.outputs.append((address, len(data)))
        return word(address.value)

    def argument(self, text):
        is_output, text = text.endswith("!"), text.rstrip("!")
        if text.startswith("["):
            data, dims = buffer(text.strip("[]"))
            count = math.prod(dims)
            size = len(data) // count
            strides = [size * math.prod(dims[at + 1:]) for at in range(len(dims))]
            self.params += [word(0), word(0), word(count), word(size), self.device(data, is_output)]
            self.params += [word(number) for number in dims + strides]
        elif text.startswith("("):
            self.params.append(struct(text))
        elif text == "null":
            self.params.append(word(0))
        elif "*" in text:
            self.params.append(self.device(buffer(text)[0], is_output))
        elif text.endswith("f"):
            self.params.append(np.float32(text[:-1]).tobytes())
        else:
            self.params.append(np.int32(text).tobytes())

    def launch(self, ptx, entry, grid, block, shared):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(ptx.encode() + b"\0")))
        check(cuda.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()))
        kept = [ctypes.create_string_buffer(param, len(param)) for param in self.params]
        table = (ctypes.c_void_p * len(kept))(*[ctypes.cast(param, ctypes.c_void_p) for param in kept])
        check(cuda.cuLaunchKernel(function, *grid, *block, shared, None, table, None))
        check(cuda.cuCtxSynchronize())
        data = b""
        for address, length in self.outputs:
            part = ctypes.create_string_buffer(length)
            check(cuda.cuMemcpyDtoH_v2(part, address, ctypes.c_size_t(length)))
            data += part.raw
        for address in self.memory:
            check(cuda.cuMemFree_v2(address))
        check(cuda.cuModuleUnload(module))
        return data


def printed(run):
    """What `run` returns, and what it has the driver print."""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            result = run()
            libc.fflush(None)
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return result, file.read()


def triple(text):
    dims = [int(dim) for dim in text.split("x")]
    return dims + [1] * (3 - len(dims))


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


def record(out, line):
    name, grid, block, shared, *arguments = line.split()
    file, _, kernel = name.partition(":")
    ptx = (HERE / "ptx" / f"{file}.ptx").read_text()
    entries = [line.split(".entry ")[1].split("(")[0].strip() for line in ptx.splitlines() if ".entry " in line]
    entry = kernel or (file if file in entries else entries[0])
    run = Run()
    for argument in arguments:
        run.argument(argument)
    data, text = printed(lambda: run.launch(ptx, entry, triple(grid), triple(block), int(shared)))
    name = kernel or file
    (out / f"{name}.bin").write_bytes(data)
    if text:
        (out / f"{name}.txt").write_bytes(text)
    with open(out / "sums.txt", "a") as sums:
        sums.write(f"{name} {fnv(data):#018x}\n")
    print(name, len(data), f"{fnv(data):#018x}", flush=True)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    (out / "sums.txt").write_text("")
    device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    model = ctypes.create_string_buffer(100)
    check(cuda.cuDeviceGetName(model, 100, device))
    check(cuda.cuDriverGetVersion(ctypes.byref(version)))
    print(model.value.decode(), "CUDA", version.value)
    failures = 0
    for line in (HERE / "cases.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            try:
                record(out, line)
            except Exception as error:
                failures += 1
                print(line.split()[0], "FAILED", repr(error), flush=True)
    print("failures:", failures)


main()
