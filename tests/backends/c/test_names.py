"""Tests of model and input names as identifiers in C and C++, and of collisions."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tcc.backends.artifact.identifiers import transliterated
from tcc.backends.c.names import CNames

from tests.lib.c_files.run_c import build, write_c

# Keywords of C and C++; types, macros and functions of the headers; and the file's own names.
NAMES = (
    "class new this operator typename co_await nullptr constexpr typeof _Bool bool int register "
    "int8_t uint64_t size_t wchar_t NULL NAN INFINITY INT8_MAX UINT64_MAX SIZE_MAX M_PI FP_NAN "
    "linux unix memmove memcpy tcc_op_call tcc_pool r0 r1 r12 inputs inputs_0 outputs call pool "
    "ints results temporaries kernel_0 m_run m_weights memory_y x e e2 é è ê 中 1st a_b a-b a/b "
    "µ ß ss \u202e"
).split()


def hostile() -> onnx.ModelProto:
    """Returns a model of y = the sum of 2^n times the n-th input, and a call of a C function."""
    ports = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [1]) for n in NAMES]
    nodes, total = [], "zero"
    for n, name in enumerate(NAMES):
        nodes.append(helper.make_node("Mul", [name, f"factor {n}"], [f"scaled {n}"]))
        nodes.append(helper.make_node("Add", [total, f"scaled {n}"], [f"sum {n}"]))
        total = f"sum {n}"
    nodes.append(helper.make_node("TopK", [total, "one"], ["y", "at"]))
    numbers = {"zero": 0.0, **{f"factor {n}": 2.0**n for n in range(len(NAMES))}}
    constants = [onnx.numpy_helper.from_array(np.array([x]), n) for n, x in numbers.items()]
    constants.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    results = [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1]),
               helper.make_tensor_value_info("at", TensorProto.INT64, [1])]  # fmt: skip
    graph = helper.make_graph(nodes, "hostile", ports, results, constants)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def test_inputs_of_any_name_are_parameters_in_c_and_in_cpp(tmp_path: Path) -> None:
    source = write_c(hostile(), tmp_path)
    for standard in ("c11", "gnu17"):
        library = build(source, "gcc", f"-std={standard}")
        bits = [float(n % 3 == 0) for n in range(len(NAMES))]
        y, at = ctypes.c_double(), ctypes.c_int64(7)
        arguments = [ctypes.byref(ctypes.c_double(bit)) for bit in bits]
        assert library.m_run(*arguments, ctypes.byref(y), ctypes.byref(at)) == 0
        assert (y.value, at.value) == (sum(bit * 2.0**n for n, bit in enumerate(bits)), 0)
    user = tmp_path / "user.cpp"
    user.write_text('#include <cstring>\n#include <cmath>\n#include "m.h"\n')
    command = ["g++", "-std=gnu++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", str(user)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[:4000]


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Größe", "Grosse"), ("café", "cafe"), ("cafe\u0301", "cafe"), ("MASS ẞ", "MASS_SS"),
        ("æøłđ", "aeold"), ("βµ", "betamu"), ("Ж", "Zhe"), ("中文", "u4e2du6587"), ("½①", "121"),
        ("a—b c", "a_b_c"), ("😀", "_"), ("", ""),
    ],
)  # fmt: skip
def test_letters_of_other_alphabets_are_transliterated(text: str, letters: str) -> None:
    assert transliterated(text) == letters


def test_equal_transliterations_get_numbers() -> None:
    names = CNames(frozenset({"y"}))
    port_names = ("é", "e", "è", "y", "class", "class", "2d", "2d", "中", "__", "a__b", "a_b")
    expected_names = "e e2 e3 y2 class2 class3 x2d x2d2 u4e2d x a_b a_b2".split()
    assert [names.fresh(name) for name in port_names] == expected_names
