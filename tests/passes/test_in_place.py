"""Results over operands: which launches of small graphs do it, and what comes out."""

from __future__ import annotations

import pytest
from tcc.ir.program import Launch
from tcc.ir.verify_tile import verify_kernel
from tcc.schedule.choose import Registers

from .fuse.models import MODELS
from .fuse.test_programs import check, lowered


@pytest.mark.parametrize("name", ["joined_maps", "joined_rows"])
def test_results_lie_where_an_operand_did(name: str) -> None:
    graph = MODELS[name]()
    made = program, kernels, _ = lowered(graph, Registers(16, 16))
    found = 0
    for launch in program.body:
        if not isinstance(launch, Launch):
            continue
        for buffer in dict.fromkeys(b for b in launch.buffers if launch.buffers.count(b) > 1):
            places = tuple(n for n, b in enumerate(launch.buffers) if b == buffer)
            assert places in kernels[launch.kernel].in_place
            found += 1
    assert found > 0
    for kernel in kernels:
        verify_kernel(kernel)
    check(graph, made, 5)


@pytest.mark.parametrize("name", ["residual_block", "shared_value"])
def test_what_is_read_again_stays(name: str) -> None:
    """Sums and maps here read a value that is given out or read elsewhere."""
    program, kernels, _ = lowered(MODELS[name](), Registers(16, 16))
    launches = [i for i in program.body if isinstance(i, Launch)]
    assert all(len(set(i.buffers)) == len(i.buffers) for i in launches)
    assert all(not kernel.in_place for kernel in kernels)
