"""The compiled op matrix: every row, on each of its samples, as machine code, equals the reference.

Each case is a graph of one node. A batch of cases shares an artifact, so that linking and starting
the code generator happen once per batch. Memory is poisoned before each use.
"""

from __future__ import annotations

import random
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from tcc.ir.op import Trait
from tcc.ops import OPS

from tests.lib.op_matrix.batch import PLAIN, Results, Variant, run_batch, run_together
from tests.lib.op_matrix.cases import (
    CASES,
    SYMBOLIC_CASES,
    Case,
    check,
    fewer,
    judge_all,
    reference,
    rows,
    some,
)
from tests.lib.op_matrix.special import SpecialCase, differs, one_of
from tests.part import part, takes_all
from tests.processors import distinct

BATCH = 120

# tests/e2e covers control flow (needs bodies), collectives (need ranks) and random nodes (need a
# run). The other rows only check or name sizes.
NO_RESULT = (
    "if", "loop", "scan", "require", "broadcast_size", "name_size", "check_indices", "bind_size",
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "rank",
    "run_seed", "trip_number",
)  # fmt: skip
# The operands of these rows are no arrays: tests/e2e/test_sequences.py compiles them.
OF_LISTS = ("list_at", "list_concat", "list_erase", "list_expect", "list_insert", "list_length")
WHOLE = tuple(c for c in CASES if c.op.name not in NO_RESULT and not c.half)
HALVES = tuple(c for c in CASES if c.op.name not in NO_RESULT and c.half)
# Elementwise rows compute bf16 in f32, so one sample is enough to test reads and writes.
SOME_HALVES = (
    *some((c for c in HALVES if Trait.ELEMENTWISE in c.op.traits), 1),
    *some((c for c in HALVES if Trait.ELEMENTWISE not in c.op.traits), 3),
)
COMPILED = (*WHOLE, *SOME_HALVES)
ALL = (*WHOLE, *HALVES)
# Rows with many samples vary mostly bounds and element types, which the evaluators of expressions
# and tiles also check: eight samples are compiled, with `--whole` all.
SPREAD = COMPILED if takes_all() else some(COMPILED, 8)
# Options that leave passes out: scripts/op_matrix compiles all cases with each option, the tests a
# tenth.
MODES: dict[str, dict[str, Any]] = {"underived": {"level": 3, "derive": False}, "O0": {"level": 0}}
# Constant operands are packed for the kernels that read them; the first operand stays an input.
PACKED = tuple(c for c in COMPILED if Trait.CONTRACTION in c.op.traits and not c.half)
ARITHMETIC = Trait.ELEMENTWISE | Trait.REDUCTION | Trait.CONTRACTION


OPEN = fewer((c for c in SYMBOLIC_CASES if c.op.name not in NO_RESULT), 3, 1)
# The other vector width, if the machine has two: scripts/other_cpus has all cases.
AVX2 = some((c for c in COMPILED if not c.half and c.op.traits & ARITHMETIC), 2)
# Special values: one case of each elementwise row and of every fourth other row; the element type
# changes from row to row. scripts/special_values has all cases.
SPECIAL_CASES = tuple(
    case
    for n, op in enumerate(OPS.values())
    if Trait.ELEMENTWISE in op.traits or n % 4 == 0
    for case in one_of(op, n)
)


def constants(case: Case) -> Variant:
    return Variant(constant=frozenset(range(1, len(case.sample.inputs))))


def tenth(name: str) -> tuple[Case, ...]:
    """Returns a tenth of all cases, seeded by `name`; scripts/op_matrix has the others."""
    drawn = random.Random(name).sample(range(len(ALL)), -(-len(ALL) // 10))
    return tuple(ALL[number] for number in sorted(drawn))


# The sets by name: cases, CPU, the variant of each case, and options.
SETS = {
    "plain": (SPREAD, "host", lambda _: PLAIN, {}),
    "constants": (part("constants", PACKED, 3), "host", constants, {}),
    "open": (part("open", OPEN, 3), "host", lambda _: Variant(open=True), {}),
    "special": (part("special", SPECIAL_CASES, 3), "host", lambda _: PLAIN, {}),
    **{name: (tenth(name), "host", lambda _: PLAIN, given) for name, given in MODES.items()},
}
if "x86-64-v3" in distinct("host", "x86-64-v3"):
    SETS["avx2"] = (part("avx2", AVX2, 3), "x86-64-v3", lambda _: PLAIN, {})


def batches(name: str) -> list[list[list[Case]]]:
    """Returns the rows of a set, grouped in batches."""
    batches_made: list[list[list[Case]]] = [[]]
    for row in rows(SETS[name][0]).values():
        if sum(map(len, batches_made[-1])) + len(row) > BATCH:
            batches_made.append([])
        batches_made[-1].append(row)
    return batches_made


@cache
def results(name: str, batch: int) -> Results:
    _, cpu, variant, given = SETS[name]
    part = [case for row in batches(name)[batch] for case in row]
    return run_batch(part, cpu, {c.name: variant(c) for c in part}, partial(run_together, **given))


PARAMETERS = [
    pytest.param(
        name,
        number,
        row,
        id=f"{name}-{row[0].op.name}",
        marks=pytest.mark.xdist_group(f"compiled-{name}-{number}"),
    )
    for name in SETS
    for number, batch in enumerate(batches(name))
    for row in batch
]


@pytest.mark.parametrize(("name", "batch", "row"), PARAMETERS)
def test_compiled_agrees_with_reference(name: str, batch: int, row: list[Case]) -> None:
    batch_results = results(name, batch)

    def judge(case: Case) -> None:
        if case.name in batch_results.failures:
            raise batch_results.failures[case.name]
        with np.errstate(all="ignore"):
            expected = reference(case)
            if isinstance(case, SpecialCase):
                assert differs(case, batch_results.outputs[case.name], expected) == ""
                return
            check(case, batch_results.outputs[case.name], expected, case.op.tolerance)

    judge_all(row, judge)


def test_every_row_with_a_result_is_compiled() -> None:
    assert {c.op.name for c in SPREAD} == OPS.keys() - {*NO_RESULT, *OF_LISTS}
