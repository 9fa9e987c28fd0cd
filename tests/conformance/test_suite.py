"""A seeded sample of ONNX's own node cases, compiled and compared as scripts/conformance does."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from onnx_suite.cases import SuiteCase, node_cases, node_modules
from onnx_suite.judge import judge
from onnx_suite.report import as_row, read_expected

EXPECTED = Path(__file__).with_name("expected.toml")
_MODULES = 5  # every fifth module is drawn,
_DRAWN, _CASES = 3, 16  # and 3 of 16 cases
_LEVEL = 3
_ALWAYS = "qlinearmatmul"  # always drawn: its 16-bit scales occur in no row of the op table


def _number(text: str) -> int:
    return zlib.crc32(text.encode())


def _sample() -> list[SuiteCase]:
    modules = [name for name in node_modules() if _number(name) % _MODULES == 0]
    return [
        case
        for case in node_cases([*modules, _ALWAYS])
        if case.name.startswith(f"test_{_ALWAYS}") or _number(case.name) % _CASES < _DRAWN
    ]


@pytest.mark.parametrize("case", _sample(), ids=lambda case: case.name)
def test_node(case: SuiteCase) -> None:
    mode = "constant" if _number(case.name) // _CASES % 4 == 0 else "static"
    row = as_row(judge(case, mode, _LEVEL))
    assert read_expected(EXPECTED, mode, _LEVEL).complaints({case.name: row}) == []
