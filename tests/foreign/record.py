"""Makes the PTX of the kernels in this folder and records what it computes on a card; README.md says how to use it.

The cases, the inputs and the launches are those of main.rs and expected.rs.
"""
import ctypes
import os
import pathlib
import subprocess
import sys

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = pathlib.Path(__file__).parent
OUT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(HERE / "triton"))
import kernels


def ramp(count, seed):
    return (np.arange(count, dtype=np.int64) * 37 + seed * 101 + 11) % 251


def values(kind, count, seed):
    r = ramp(count, seed)
    floats = (r - 125) / 64
    return {
        "f32": lambda: floats.astype(np.float32),
        "f16": lambda: floats.astype(np.float16),
        "f64": lambda: floats,
        "i32": lambda: (r - 125).astype(np.int32),
        "u32": lambda: (r + 1).astype(np.uint32),
        "u8": lambda: r.astype(np.uint8),
        "u64": lambda: (r + 1).astype(np.uint64) * np.uint64(0x10001000100003),
        "zero": lambda: np.zeros(count, np.uint32),
    }[kind]()


def i(value):
    return np.int32(value)


def f(value):
    return np.float32(value)


# Name, entry, grid, block; a buffer is its kind, count and seed; the one with "out" behind it is recorded.
CASES = [
    ("saxpy", "saxpy", (2, 1, 1), (128, 1, 1), [("f32", 1000, 1), ("f32", 1000, 2, "out"), f(1.5), i(1000)]),
    ("gelu", "gelu", (2, 1, 1), (64, 1, 1), [("f32", 400, 1), ("zero", 400, 0, "out"), i(100)]),
    ("reduce", "reduce", (4, 1, 1), (128, 1, 1), [("f32", 2000, 1), ("zero", 1, 0, "out"), i(2000)]),
    ("softmax", "softmax", (5, 1, 1), (128, 1, 1), [("f32", 1000, 1), ("zero", 1000, 0, "out"), i(200)]),
    ("transpose", "transpose", (2, 2, 1), (32, 8, 1), [("f32", 40 * 50, 1), ("zero", 40 * 50, 0, "out"), i(40), i(50)]),
    ("matmul", "matmul", (2, 2, 1), (16, 16, 1), [("f32", 1024, 1), ("f32", 1024, 2), ("zero", 1024, 0, "out"), i(32)]),
    ("wmma", "wmma_matmul", (2, 2, 1), (32, 1, 1), [("f16", 1024, 1), ("f16", 1024, 2), ("zero", 1024, 0, "out"), i(32)]),
    ("half2", "half2_relu", (2, 1, 1), (128, 1, 1), [("f16", 400, 1), ("f16", 400, 2), ("zero", 200, 0, "out"), i(200)]),
    ("histogram", "histogram", (3, 1, 1), (256, 1, 1), [("u8", 5000, 1), ("zero", 256, 0, "out"), i(5000)]),
    ("scan", "scan", (1, 1, 1), (1024, 1, 1), [("i32", 1024, 1), ("zero", 1024, 0, "out")]),
    ("pipeline", "pipeline", (1, 1, 1), (128, 1, 1), [("f32", 2048, 1), ("zero", 2048, 0, "out"), i(512)]),
    ("normalize", "normalize", (1, 1, 1), (32, 1, 1), [("f32", 500, 1), ("zero", 500, 0, "out"), i(20), i(25)]),
    ("collatz", "collatz", (1, 1, 1), (256, 1, 1), [("u32", 256, 1), ("zero", 256, 0, "out")]),
    ("constant", "constant", (1, 1, 1), (64, 1, 1), [("f32", 64, 1), ("zero", 64, 0, "out")]),
    ("dot4", "dot4", (1, 1, 1), (64, 1, 1), [("i32", 64, 1), ("i32", 64, 2), ("zero", 64, 0, "out")]),
    ("rust", "happy", (2, 1, 1), (128, 1, 1), [("u32", 200, 1), ("zero", 200, 0, "out"), i(200)]),
    ("rust", "heat", (2, 1, 1), (128, 1, 1), [("f64", 200, 1), ("zero", 400, 0, "out"), i(200)]),
    ("rust", "bits", (1, 1, 1), (128, 1, 1), [("u64", 128, 1), ("zero", 256, 0, "out")]),
]

# Function, signature, constants, warps, grid, arguments.
TRITON = [
    ("add", "*fp32 *fp32 *fp32 i32", {"BLOCK": 256}, 4, (4, 1, 1),
     [("f32", 1000, 1), ("f32", 1000, 2), ("zero", 1000, 0, "out"), i(1000)]),
    ("row_softmax", "*fp32 *fp32 i32", {"BLOCK": 256}, 4, (5, 1, 1),
     [("f32", 1000, 1), ("zero", 1000, 0, "out"), i(200)]),
    ("layer_norm", "*fp32 *fp32 i32", {"BLOCK": 256}, 2, (5, 1, 1),
     [("f32", 1000, 1), ("zero", 1000, 0, "out"), i(200)]),
    ("swap_axes", "*fp32 *fp32 i32 i32", {"BLOCK": 32}, 4, (2, 2, 1),
     [("f32", 40 * 50, 1), ("zero", 40 * 50, 0, "out"), i(40), i(50)]),
    ("dot", "*fp16 *fp16 *fp32 i32", {"BLOCK": 32, "STEP": 32}, 4, (2, 2, 1),
     [("f16", 4096, 1), ("f16", 4096, 2), ("zero", 4096, 0, "out"), i(64)]),
    ("total", "*fp32 *fp32 i32", {"BLOCK": 512}, 4, (4, 1, 1),
     [("f32", 2000, 1), ("zero", 1, 0, "out"), i(2000)]),
]

cuda = ctypes.CDLL("libcuda.so.1")


def check(code):
    assert code == 0, f"driver error {code}"


def run(ptx, entry, grid, block, shared, arguments):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(ptx.encode() + b"\0")))
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, entry.encode()))
    params, keep, recorded = [], [], None
    for argument in arguments:
        if isinstance(argument, tuple):
            host = values(*argument[:3])
            tensor = torch.from_numpy(host.view(np.uint8).copy()).cuda()
            keep.append(tensor)
            params.append(ctypes.c_uint64(tensor.data_ptr()))
            if argument[3:] == ("out",):
                recorded = tensor
        elif isinstance(argument, np.float32):
            params.append(ctypes.c_float(argument))
        else:
            params.append(ctypes.c_int32(argument))
    # Triton adds pointers to scratch memory, which these kernels do not use.
    header = ptx[ptx.index(f".entry {entry}("):]
    header = header[:header.index(")")]
    while len(params) < header.count(".param"):
        params.append(ctypes.c_uint64(0))
    table = (ctypes.c_void_p * len(params))(*[ctypes.cast(ctypes.pointer(p), ctypes.c_void_p) for p in params])
    check(cuda.cuLaunchKernel(function, *grid, *block, shared, None, table, None))
    check(cuda.cuCtxSynchronize())
    return recorded.cpu().numpy().tobytes()


torch.zeros(1).cuda()
print(torch.cuda.get_device_name(), torch.__version__, triton.__version__)
subprocess.run(["nvcc", "--version"])
failures = 0
for name, entry, grid, block, arguments in CASES:
    try:
        path = OUT / f"{name}.ptx"
        if name == "rust":
            path.write_text((HERE / "rust.ptx").read_text())
        else:
            source = HERE / "cuda" / f"{name}.cu"
            subprocess.run(["nvcc", "-arch=compute_80", "-O3", "-ptx", str(source), "-o", str(path)], check=True)
        (OUT / f"{entry}.bin").write_bytes(run(path.read_text(), entry, grid, block, 0, arguments))
    except Exception as error:
        failures += 1
        print(name, entry, "FAILED", repr(error))
for name, signature, constants, warps, grid, arguments in TRITON:
    try:
        function = getattr(kernels, name)
        types = dict(zip(function.arg_names, signature.split() + ["constexpr"] * len(constants)))
        pointers = {(at,): [["tt.divisibility", 16]] for at, ty in enumerate(signature.split()) if ty.startswith("*")}
        source = ASTSource(fn=function, signature=types, constexprs=constants, attrs=pointers)
        built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": warps})
        ptx = built.asm["ptx"]
        (OUT / f"{name}.ptx").write_text(ptx)
        print(name, "shared", built.metadata.shared, "warps", built.metadata.num_warps)
        (OUT / f"{name}.bin").write_bytes(run(ptx, name, grid, (32 * warps, 1, 1), built.metadata.shared, arguments))
    except Exception as error:
        failures += 1
        print(name, "FAILED", repr(error))
print("failures:", failures)
