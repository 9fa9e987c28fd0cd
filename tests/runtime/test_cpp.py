"""`tcc.hpp`: C++ programs compile without warnings, get right results, and catch every failure.

`tcc.h` names devices and element types with DLPack's values.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import programs
import pytest
from programs import Builder
from tcc.backends.artifact.toolchain import runtime_folder
from tcc.ir.program import CallOp, Input, Program, TensorRef
from tcc.ir.types import DTYPES
from tcc.runtime import abi

from tests.processes import finished

HOST = Path(__file__).with_name("cpp_host.cpp")
INCLUDE = runtime_folder() / "include"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
WATCHED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
STANDARDS = ("c++17", "c++20")
# A failure is a status and a message.
REFUSALS = {
    "long": "1 input 'x': n is at most 64 (65, 64)",
    "count": "1 input x [4]: the shape has 4 elements, and there are 65 values",
    "open": "1 input x [n]: a shape has the size -1",
    "huge": "1 input x [n]: a shape has too many elements",
    "type": "1 x has elements of f32, not of f64",
    "name": "1 no port has the name z; there are: y",
    "inputs": "1 expected 1 inputs, got 0",
    "missing": "1 output 'y': neither an array nor an allocator",
    "other": "1 model 'mini' has no asset 'other': \"assets\" in its manifest names what it has",
    "negative": "1 threads: expected 0 to 256, got -1",
    "element": "1 the array has elements of f32, not of i32",
    "memory": "bad_alloc",
    "table": "3 the model has another version of the interface than tcc.hpp",
}


def compiler(name: str) -> tuple[str, ...]:
    """Returns the command of a C++ compiler; clang may come from ziglang's wheel."""
    if shutil.which(name):
        return (name,)
    if name == "clang++" and importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    pytest.skip(f"{name} is not installed")


def words() -> Program:
    """Returns y = s + s for three strings."""
    builder = Builder()
    three, size = builder.const(3), builder.const(24)
    builder.input("s", "string", [three], "[3]")
    strings = TensorRef(builder.buffer(Input(0)), DTYPES["u64"], (three,))
    y = builder.output("y", "string", [three], "[3]")
    builder.allocate(y, size)
    doubled = TensorRef(y, DTYPES["u64"], (three,))
    builder.body.append(CallOp("string_concat", (strings, strings), (doubled,), ()))
    return builder.program()


@pytest.fixture(scope="module")
def artifacts(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the four artifacts of the host program, and their headers."""
    folder = tmp_path_factory.mktemp("artifacts")
    program, weights = programs.mlp()
    assets = {"note": b"two words"}
    programs.link(program, kernels, folder / "mini.so", weights=[weights], assets=assets)
    other_programs = {
        "second": programs.doubling(),
        "updating": programs.updating(4),
        "words": words(),
    }
    for name, other in other_programs.items():
        programs.link(other, kernels, folder / f"{name}.so", name=name)
    return folder


def built(command: Sequence[str], artifacts: Path, out: Path, *flags: str) -> Path:
    libraries = sorted(map(str, artifacts.glob("*.so")))
    folders = (f"-I{artifacts}", f"-I{INCLUDE}", f"-Wl,-rpath,{artifacts}")
    words = (*command, *flags, *STRICT, *folders, str(HOST), *libraries, "-pthread", "-o", str(out))
    subprocess.run(words, check=True)
    return out


def test_results_and_errors_reach_cpp_under_sanitizers(artifacts: Path, tmp_path: Path) -> None:
    host = built(compiler("g++"), artifacts, tmp_path / "host", "-std=c++17", *WATCHED)
    result = finished(host)
    assert result.returncode == 0, result.stderr[-3000:]
    printed = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    relu = programs.expected_mlp(np.array([-1, 2, 3], np.float32))
    total = 20 * programs.expected_mlp(np.array([1, 2], np.float32)).sum()
    numbers = {
        "mini": relu, "instance": relu, "room": relu, "second": 2 * relu, "shape": [3],
        "state": [2, 4, 6, 8], "address": [1], "none": [0], "threads": [total] * 4,
    }  # fmt: skip
    for name, expected in numbers.items():
        assert np.array_equal([float(word) for word in printed[name].split()], expected), name
    texts = {"words": "aa  bcbc", "port": "x [n] -1", "manifest": "{}", "note": "two words"}
    assert {name: printed[name] for name in texts} == texts
    assert {name: printed[name] for name in REFUSALS} == REFUSALS


@pytest.mark.parametrize("standard", STANDARDS)
@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_compilers_accept_the_header(
    artifacts: Path, tmp_path: Path, name: str, standard: str
) -> None:
    command = compiler(name)
    flags = (*STRICT, f"-I{artifacts}", f"-I{INCLUDE}", f"-std={standard}", "-c", str(HOST))
    subprocess.run((*command, *flags, "-o", str(tmp_path / "host.o")), check=True)


DLPACK_DEVICES = {
    "TCC_CPU": "kDLCPU", "TCC_CUDA": "kDLCUDA", "TCC_CUDA_HOST": "kDLCUDAHost",
    "TCC_ROCM": "kDLROCM", "TCC_ROCM_HOST": "kDLROCMHost", "TCC_OPAQUE": "kDLOpaqueHandle",
}  # fmt: skip
DLPACK_CODES = {
    "b": "kDLBool", "i": "kDLInt", "u": "kDLUInt", "f": "kDLFloat", "bf": "kDLBfloat",
    "f8e4m3fn": "kDLFloat8_e4m3fn", "f8e4m3fnuz": "kDLFloat8_e4m3fnuz",
    "f8e5m2": "kDLFloat8_e5m2", "f8e5m2fnuz": "kDLFloat8_e5m2fnuz",
    "f8e8m0": "kDLFloat8_e8m0fnu", "f4e2m1": "kDLFloat4_e2m1fn", "string": "kDLOpaqueHandle",
}  # fmt: skip


def test_constants_of_the_header_are_those_of_dlpack(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("tvm_ffi")
    assert spec is not None
    assert spec.origin is not None
    dlpack = Path(spec.origin).parent / "include"
    lines = [f"static_assert({a} == (int){b});" for a, b in DLPACK_DEVICES.items()]
    for name, (_, bits) in abi.DTYPE_CODES.items():
        letters = "b" if name == "bool" else name.rstrip("0123456789")
        code = DLPACK_CODES.get(name) or DLPACK_CODES[letters]
        constant = f"TCC_{name.upper()}"
        lines.append(f"static_assert({constant}.code == {code} && {constant}.bits == {bits});")
    lines.append("static_assert(sizeof(tcc_tensor) == sizeof(DLTensor));")
    source = tmp_path / "constants.cpp"
    source.write_text('#include "dlpack/dlpack.h"\n#include "tcc.h"\n' + "\n".join(lines) + "\n")
    folders = (f"-I{dlpack}", f"-I{INCLUDE}")
    command = (*compiler("g++"), "-std=c++17", *STRICT, *folders, "-fsyntax-only", str(source))
    subprocess.run(command, check=True)
    host = tmp_path / "constants.c"
    host.write_text(
        '#include "tcc.h"\nint main(void) {\n    tcc_tensor x = {.dtype = TCC_BF16, .device = '
        "{TCC_CPU, 0}};\n    x.dtype = TCC_I64;\n    return x.dtype.code + x.dtype.bits - 64;\n}\n"
    )
    program = tmp_path / "constants"
    words = ("cc", "-std=c11", *STRICT, f"-I{INCLUDE}", str(host), "-o", str(program))
    subprocess.run(words, check=True)
    assert finished(program).returncode == 0
