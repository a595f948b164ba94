"""Compiles the kernels of this folder to `ptx`, without a card; README.md says with what.

    python compile.py OUT [NAME..]
"""
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
# Those that need more than sm_80.
NEWER = {"atomics16": 90}


def cuda(source):
    home = os.environ["CUDA_HOME"]
    arch = f"compute_{NEWER.get(source.stem, 80)}"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "out.ptx"
        subprocess.run([f"{home}/bin/nvcc", f"-arch={arch}", "-O3", "-ptx", str(source), "-o", str(path)], check=True)
        return path.read_text()


# Function, file, signature, constants, warps.
TRITON = [
    ("add", "add", "*fp32 *fp32 *fp32 i32", {"BLOCK": 256}, 4),
    ("row_softmax", "row_softmax", "*fp32 *fp32 i32", {"BLOCK": 256}, 4),
    ("layer_norm", "layer_norm", "*fp32 *fp32 i32", {"BLOCK": 256}, 2),
    ("swap_axes", "swap_axes", "*fp32 *fp32 i32 i32", {"BLOCK": 32}, 4),
    ("dot", "dot", "*fp16 *fp16 *fp32 i32", {"BLOCK": 32, "STEP": 32}, 4),
    ("total", "total", "*fp32 *fp32 i32", {"BLOCK": 512}, 4),
    ("dot_any", "dot_bf16", "*bf16 *bf16 *fp32 i32", {"BLOCK": 32, "STEP": 32, "TOTAL": "fp32"}, 4),
    ("dot_any", "dot_tf32", "*fp32 *fp32 *fp32 i32", {"BLOCK": 32, "STEP": 32, "TOTAL": "fp32"}, 4),
    ("dot_any", "dot_int8", "*i8 *i8 *i32 i32", {"BLOCK": 32, "STEP": 32, "TOTAL": "int32"}, 4),
    ("attention", "attention", "*fp16 *fp16 *fp16 *fp32 i32 fp32", {"D": 32, "ROWS": 32, "KEYS": 32}, 2),
    ("running", "running", "*i32 *i32", {"BLOCK": 512}, 4),
    ("sorted", "sorted", "*i32 *i32", {"BLOCK": 128}, 2),
    ("bins", "bins", "*i32 *i32", {"BLOCK": 512}, 4),
    ("gather", "gather", "*fp32 *i32 *fp32 i32", {"BLOCK": 64}, 2),
    ("random", "random", "*i32 i32", {"BLOCK": 256}, 2),
    ("extremes", "extremes", "*i32 *i32 i32", {"BLOCK": 128}, 2),
]


def triton(name, signature, constants, warps):
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sys.path.insert(0, str(HERE / "triton"))
    import kernels

    types = {"fp32": tl.float32, "int32": tl.int32}
    constants = {key: types.get(value, value) for key, value in constants.items()}
    function = getattr(kernels, name)
    arguments = dict(zip(function.arg_names, signature.split() + ["constexpr"] * len(constants)))
    pointers = {(at,): [["tt.divisibility", 16]] for at, ty in enumerate(signature.split()) if ty.startswith("*")}
    source = ASTSource(fn=function, signature=arguments, constexprs=constants, attrs=pointers)
    built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": warps})
    print(f"  {32 * built.metadata.num_warps} threads, {built.metadata.shared} shared bytes")
    return built.asm["ptx"]


def numba():
    from numba import cuda

    spec = __import__("importlib.util").util.spec_from_file_location("numba_kernels", HERE / "numba" / "kernels.py")
    module = __import__("importlib.util").util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for function, signature in module.KERNELS:
        ptx, _ = cuda.compile_ptx(function, signature, device=False, cc=(8, 0), abi="numba")
        yield function.__name__, ptx


def main():
    out, wanted = pathlib.Path(sys.argv[1]), set(sys.argv[2:])

    def write(name, text):
        (out / f"{name}.ptx").write_text(text)
        print(name)

    for source in sorted((HERE / "cuda").glob("*.cu")):
        if not wanted or source.stem in wanted:
            write(source.stem, cuda(source))
    for name, file, signature, constants, warps in TRITON:
        if not wanted or file in wanted:
            write(file, triton(name, signature, constants, warps))
    for name, ptx in numba():
        if not wanted or f"numba_{name}" in wanted:
            write(f"numba_{name}", ptx)


main()
