"""Tests of linked files: they load on systems of 2012, and an artifact's SONAME is its file
name."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import programs
import pytest
import tcc
from onnx import TensorProto, helper
from tcc.artifact import needed_glibc, verify_image
from tcc.backends.artifact.comm_library import build_comm_library
from tcc.backends.artifact.toolchain import (
    Toolchain,
    build_planner,
    find_toolchain,
    runtime_folder,
)
from tcc.driver import compile_model
from tcc.options import read_options

from tests.lib.elf_symbols import dynamic, newest_glibc, version_numbers

OLDEST = (2, 17)


def functions() -> onnx.ModelProto:
    """Returns a model with functions of one and two numbers, in f32 and f64, that C libraries have
    too."""
    one = "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Log Round Sin Sinh Sqrt Tan Tanh"
    nodes, ports = [], []
    for kind in (TensorProto.FLOAT, TensorProto.DOUBLE):
        name = f"x{kind}"
        ports.append(helper.make_tensor_value_info(name, kind, ["n"]))
        for n, op in enumerate([*one.split(), "Pow", "Mod"]):
            inputs, extra = [name], {"fmod": 1} if op == "Mod" else {}
            if op in ("Pow", "Mod"):
                inputs.append(f"x{kind}")
            nodes.append(helper.make_node(op, inputs, [f"y{kind}.{n}"], **extra))
    outputs = [helper.make_empty_tensor_value_info(node.output[0]) for node in nodes]
    graph = helper.make_graph(nodes, "functions", ports, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


CROSS = "aarch64-linux-gnu-gcc"
ARM = pytest.param(
    {"target": "cpu:aarch64"},
    marks=pytest.mark.skipif(not shutil.which(CROSS), reason=f"needs {CROSS}"),
)


@pytest.mark.parametrize("choices", [{}, {"cpu": "x86-64-v2"}, ARM], ids=str)
def test_an_artifact_needs_no_function_newer_than_glibc_2_17(
    choices: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "model.so"
    compiled = compile_model(functions(), read_options({"jobs": 1, **choices}), out)
    assert newest_glibc(out) <= OLDEST
    # In glibc 2.17, threads and the loader have separate libraries.
    assert {"libc.so.6", "libpthread.so.0", "libdl.so.2"} <= set(dynamic(out, 1))
    assert compiled.summary.needs == "glibc 2.17"


@pytest.mark.parametrize("build", [build_planner, build_comm_library])
def test_a_library_of_tccs_own_needs_no_function_newer_than_glibc_2_17(
    build: Callable[[Toolchain, Path], Path], tmp_path: Path
) -> None:
    assert newest_glibc(build(find_toolchain(), tmp_path)) <= OLDEST


def test_the_needed_glibc_is_read_from_the_symbols(tmp_path: Path) -> None:
    source, library = tmp_path / "any.c", tmp_path / "any.so"
    source.write_text("double hypot(double, double); double f(double x) { return hypot(x, 1); }")
    command = ("cc", "-shared", "-fPIC", "-fno-builtin", source, "-o", library, "-lm")
    subprocess.run(command, check=True)
    assert needed_glibc(library) == f"glibc {'.'.join(map(str, newest_glibc(library)))}"
    version = os.confstr("CS_GNU_LIBC_VERSION")
    if version is not None and version_numbers(version.split()[1]) >= (2, 35):
        assert newest_glibc(library) >= (2, 35)


NAMES = ("model.so", "lib net,v1 $(x).so", "näme.so", "n" * 252 + ".so")


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_the_soname_is_the_name_of_the_file(name: str, kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    out = tmp_path / name
    programs.link(program, kernels, out, weights=[weights])
    assert dynamic(out, 14) == [name]
    verify_image(out)
    assert tcc.load(out).run({"x": np.ones(4, np.float32)})["y"].sum() == 14


def test_saving_names_the_new_file(kernels: bytes, tmp_path: Path) -> None:
    program, weights = programs.mlp()
    programs.link(program, kernels, tmp_path / "mini.so", weights=[weights])
    saved = tmp_path / "another.so"
    tcc.load(tmp_path / "mini.so").save(saved)
    assert dynamic(saved, 14) == ["another.so"]
    verify_image(saved)
    again = tmp_path / "elsewhere" / "another.so"
    programs.link(program, kernels, again, weights=[weights])
    assert saved.read_bytes() == again.read_bytes()


def test_a_program_linked_with_an_artifact_finds_it_in_another_folder(
    kernels: bytes, tmp_path: Path
) -> None:
    """A linked program finds an artifact by its file name in the search path, not by the linker's
    path."""
    program, weights = programs.mlp()
    programs.link(program, kernels, tmp_path / "built" / "mini.so", weights=[weights])
    (tmp_path / "main.c").write_text(
        '#include "mini.h"\nint main(void) { return mini_api() == NULL; }\n'
    )
    flags = ("-I", "built", "-I", runtime_folder() / "include")
    command = ("cc", "main.c", *flags, "built/mini.so", "-Wl,-rpath,$ORIGIN/shipped")
    subprocess.run((*command, "-o", "main"), cwd=tmp_path, check=True)
    (tmp_path / "built").rename(tmp_path / "shipped")
    subprocess.run((tmp_path / "main",), check=True)
