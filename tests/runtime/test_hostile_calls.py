"""Host functions refuse operands that no program should give them, and never crash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sanitized import Sanitized, run_sanitized
from tcc.backends.artifact.toolchain import runtime_folder

# One worker compiles the runtime with sanitizers, even if tests are spread over several workers.
pytestmark = pytest.mark.xdist_group("sanitized-runtime")
HERE = Path(__file__).parent
CALLS = 800  # of each function


def test_no_call_accesses_memory_outside_of_its_operands(sanitized: Sanitized) -> None:
    table = (runtime_folder() / "src" / "ops" / "table.c").read_text()
    names = re.findall(r'^        \{"(\w+)", tcc_op_', table, re.M)
    assert len(names) > 40
    program = sanitized.program("hostile_calls", HERE / "hostile_calls.c")
    rows = [row.split() for row in run_sanitized(program, "1", str(CALLS), *names).splitlines()]
    assert [row[0] for row in rows] == names
    ran = sum(int(row[2]) for row in rows)
    assert CALLS < ran < CALLS * len(names)  # not all calls are refused
