"""One sample of every row of the op table, compiled for 64-bit Arm, equals the reference.

`scripts/other_cpus` runs all samples, and those for older x86-64 processors.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from tcc.ir.op import Trait

from tests.lib.arm64 import compile_emulated, needs_emulator, run_emulated
from tests.lib.op_matrix.batch import PLAIN, feeds_of, from_storage, graph_of
from tests.lib.op_matrix.cases import Case, check, reference
from tests.lib.op_matrix.special import SpecialCase, differs

from .test_compiled import COMPILED, SPECIAL_CASES

pytestmark = [needs_emulator, pytest.mark.xdist_group("emulated-ops")]


def chosen() -> dict[str, Case]:
    """Returns the longest f32 sample of each row that calls no runtime function, and special values
    of some functions."""
    rows: dict[str, Case] = {}
    for case in COMPILED:
        if case.op.expr is None or case.half or not emulates(case):
            continue
        smallest = rows.get(case.op.name)
        if smallest is None or size(case) > size(smallest):
            rows[case.op.name] = case
    edges = [c for c in SPECIAL_CASES if Trait.ELEMENTWISE in c.op.traits and emulates(c)][::5]
    return {case.name: case for case in (*rows.values(), *edges)}


def fits(case: Case) -> bool:
    """Returns True if the op accepts the operands; some attributes fit f32, but not a narrower type
    to which the sample was converted."""
    try:
        case.op.infer(case.types, case.sample.attrs)
    except ValueError:
        return False
    return True


def emulates(case: Case) -> bool:
    """Returns True if NumPy files can hold all types of the case: no narrow types, strings or
    lists."""
    if not fits(case):
        return False
    types = (*case.types, *case.op.infer(case.types, case.sample.attrs))
    return not any(t is not None and (t.dtype.is_narrow or t.dtype.is_handle) for t in types)


def size(case: Case) -> tuple[bool, int]:
    arrays = [a for a in case.sample.inputs if a is not None]
    return any(a.dtype == np.float32 for a in arrays), sum(a.size for a in arrays)


CHOSEN = chosen()


@cache
def outputs() -> dict[str, np.ndarray]:
    """Runs all cases as one artifact in the emulator; returns their outputs."""
    cases = list(CHOSEN.values())
    variants = {case.name: PLAIN for case in cases}
    with TemporaryDirectory() as folder:
        path = compile_emulated(graph_of(cases, variants), Path(folder, "batch.so"))
        return run_emulated(path, feeds_of(cases, variants), Path(folder, "arrays"))


@pytest.mark.parametrize("name", CHOSEN)
def test_code_for_arm_agrees_with_the_reference(name: str) -> None:
    case, number = CHOSEN[name], list(CHOSEN).index(name)
    types = case.op.infer(case.types, case.sample.attrs)
    results = tuple(from_storage(outputs()[f"o{number}.{k}"], t) for k, t in enumerate(types))
    with np.errstate(all="ignore"):
        expected = reference(case)
        check(case, results, expected, case.op.tolerance)
        assert not isinstance(case, SpecialCase) or differs(case, results, expected) == ""


def test_most_rows_are_there() -> None:
    assert len({case.op.name for case in CHOSEN.values()}) > 100
