"""Tests of the op matrix as C files that gcc compiles.

Samples of every op equal the reference. Ops that C files cannot have are refused by name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tcc.errors import UserError

from tests.lib.c_files.run_c import run_together, write_c
from tests.lib.op_matrix.batch import graph_of, run_batch
from tests.lib.op_matrix.cases import Case, check, judge_all, reference, some
from tests.ops.test_compiled import COMPILED

BATCH = 48
NEED_A_HEAP = frozenset({"tf_idf", "unique"})


def refused(case: Case) -> bool:
    types = [t for t in (*case.types, *case.op.infer(case.types, case.sample.attrs)) if t]
    is_static = all(t.static_shape is not None for t in types)
    return not is_static or case.op.name in NEED_A_HEAP or any(t.dtype.is_handle for t in types)


SAMPLES = some(COMPILED, 1)
TAKEN = [case for case in SAMPLES if not refused(case)]
REFUSED = [case for case in SAMPLES if refused(case)]


@pytest.mark.parametrize("first", range(0, len(TAKEN), BATCH))
def test_agrees_with_the_reference(first: int) -> None:
    cases = TAKEN[first : first + BATCH]
    batch = run_batch(cases, together=run_together)

    def judge(case: Case) -> None:
        if case.name in batch.failures:
            raise batch.failures[case.name]
        with np.errstate(all="ignore"):
            check(case, batch.outputs[case.name], reference(case), case.op.tolerance)

    judge_all(cases, judge)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.op.name)
def test_ops_that_need_a_heap_are_refused_by_name(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        write_c(graph_of([case], {}), tmp_path)
    text = str(error.value)
    assert case.op.name in text or "input i0" in text
    assert list(tmp_path.iterdir()) == []
