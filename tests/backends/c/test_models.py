"""Tests of small models as C files against ONNX Runtime, with gcc, with clang and on a Cortex-M."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.lib.c_files import board
from tests.lib.c_files.run_c import build, run_c, write_c

from .models import NAMES, check, model

CLANG = next((name for name in ("clang", "clang-19") if shutil.which(name)), "")


@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    case = model(name)
    source = write_c(case.proto, tmp_path)
    check(run_c(build(source), case.graph, case.feeds), case.expected)


@pytest.mark.skipif(not CLANG, reason="clang is not installed")
@pytest.mark.parametrize("name", NAMES)
def test_clang_takes_it_too(name: str, tmp_path: Path) -> None:
    case = model(name)
    check(run_c(build(write_c(case.proto, tmp_path), CLANG), case.graph, case.feeds), case.expected)


@pytest.mark.skipif(bool(board.MISSING), reason=f"not installed: {', '.join(board.MISSING)}")
@pytest.mark.parametrize("name", NAMES)
def test_runs_on_a_board_without_an_operating_system(name: str, tmp_path: Path) -> None:
    case = model(name)
    source = write_c(case.proto, tmp_path)
    check(board.run_on_board(source, case.graph, case.feeds), case.expected)


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    case = model("conv")
    texts = []
    for folder in ("one", "two"):
        source = write_c(case.proto, tmp_path / folder)
        texts.append((source.read_bytes(), source.with_suffix(".h").read_bytes()))
    assert texts[0] == texts[1]


def test_a_file_names_no_heap_and_no_threads(tmp_path: Path) -> None:
    for name in NAMES:
        text = write_c(model(name).proto, tmp_path, name).read_text()
        words = ("malloc", "calloc", "free(", "pthread", "stdio", "stdlib", "errno")
        assert not [word for word in words if word in text]
        includes = {line for line in text.splitlines() if line.startswith("#include <")}
        allowed = ("math", "stdbool", "stddef", "stdint", "string")
        assert includes == {f"#include <{header}.h>" for header in allowed}


def test_two_models_are_one_program(tmp_path: Path) -> None:
    one, two = (write_c(model(name).proto, tmp_path, name) for name in ("mlp", "conv"))
    both_files = tmp_path / "joined.c"
    both_files.write_text("extern int joined; int joined;\n")
    library = build(both_files, "gcc", str(one), str(two))
    assert library.mlp_run
    assert library.conv_run
