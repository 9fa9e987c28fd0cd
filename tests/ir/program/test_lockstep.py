"""The proof that ranks issue the same collectives accepts equal conditions and refuses others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tcc.errors import UserError
from tcc.ir.program import Program, State
from tcc.ir.program.lockstep import check_lockstep
from tcc.ir.program.verify import verify_program

from tests.lib.oracle.program.parse import parse_program

# The kernel reads its first two buffers and writes the third.
TEXT = """\
program registers 6 scratch 0 arena r2
  input "x" : f32[r0] "[n]"
  output "y" : f32[r0] "[n]"
  kernel "less"
  buffer b0 = input(0) "x"
  buffer b1 = output(0) "y"
  buffer b2 = weight(0, 64) "limit"
  buffer b3 = arena(r1, r2) "flag"
  buffer b4 = arena(r1, r2) "other"
  buffer b5 = alias() ""
  group "rows" (0, 1) (2, 3)
  group "columns" (0, 2) (1, 3)
  group "pairs" (1, 0) (3, 2)
{
  r0 = dim(0, 0)
  r1 = const 0
  r2 = const 64
  allocate b1 r2
BODY
}
"""
REDUCE = "collective all_reduce sum b1 = b0 (r0) : f32 ranks 0 root 0 t0 wait t0 b1 = b0"
EQUAL = "collective all_reduce sum b4 = b0 (r0) : f32 ranks 0 root 0 t0 wait t0 b4 = b0"
OWN = "collective reduce_scatter sum b4 = b0 (r1) : f32 ranks 2 root 0 t0 wait t0 b4 = b0"
ROWS, COLUMNS, PAIRS = (REDUCE.replace("0 t0 ", f"0 t0 in g{n} ", 1) for n in range(3))
ROWS, COLUMNS, PAIRS = (text.replace("ranks 0", "ranks 2") for text in (ROWS, COLUMNS, PAIRS))
EQUAL_ROWS = ROWS.replace("b1 = b0", "b4 = b0")
OVER = REDUCE.replace("b1 = b0", "b3 = b3")
READ = "r3 = read b0[0] : i64"
COMPARE = "launch k0 r0 (b4, b2, b3) ()"
BRANCH = f"branch b3 {{ {REDUCE} }} else {{ }}"


def program(*lines: str) -> Program:
    parsed = parse_program(TEXT.replace("BODY", "\n".join(lines)))
    verify_program(parsed)
    return parsed


@pytest.mark.parametrize(
    "lines",
    [
        (REDUCE,),
        (f"branch b2 {{ {REDUCE} }} else {{ }}",),
        (f"branch r0 {{ {REDUCE} }} else {{ }}",),
        (f"loop r3 < r0 {{ {REDUCE} }}",),
        (EQUAL, "launch k0 r0 (b4, b2, b3) ()", BRANCH),
        (EQUAL, "copy b3 = b4 r1", f"loop r3 < r0 while b3 {{ {REDUCE} {COMPARE} }}"),
        (EQUAL, "r3 = read b4[0] : i64", f"loop r4 < r3 {{ {REDUCE} }}"),
        # a sum overwrites its operand, or a value that an earlier trip left
        ("copy b3 = b0 r1", OVER, BRANCH),
        (f"loop r3 < r0 {{ {REDUCE.replace('b1 = b0', 'b3 = b0')} {BRANCH} copy b3 = b0 r1 }}",),
        # a condition that is equal in a group, or in a larger group, suffices for collectives of
        # the group
        (EQUAL_ROWS, COMPARE, f"branch b3 {{ {ROWS} }} else {{ }}"),
        (EQUAL_ROWS, COMPARE, f"branch b3 {{ {PAIRS} }} else {{ }}"),
        (EQUAL, COMPARE, f"branch b3 {{ {ROWS} }} else {{ {COLUMNS} }}"),
        (COLUMNS, EQUAL_ROWS, COMPARE, f"loop r3 < r0 while b3 {{ {ROWS} }}", REDUCE),
        # values that differ between ranks decide nothing
        ("launch k0 r0 (b0, b2, b4) ()", EQUAL.replace("b0", "b4").replace("b4 =", "b3 ="), BRANCH),
        ("branch b0 { copy b3 = b2 r1 } else { }", REDUCE),
    ],
    ids=str,
)  # fmt: skip
def test_equal_conditions_pass(lines: tuple[str, ...]) -> None:
    check_lockstep(program(*lines), [(2,)])


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((f"branch b0 {{ {REDUCE} }} else {{ }}",), "in a branch whose condition x may differ"),
        (("launch k0 r0 (b0, b2, b3) ()", BRANCH), "in a branch whose condition flag may differ"),
        (("launch k0 r0 (b2, b0, b3) ()", BRANCH), "condition flag"),
        ((OWN, "launch k0 r0 (b4, b2, b3) ()", BRANCH), "condition flag"),
        (("copy b3 = b0 r1", BRANCH), "condition flag"),
        (('call "sort" (b0 : f32[r0]) (b3 : f32[r0]) () ()', BRANCH), "condition flag"),
        (("copy b3 = b0 r1", f"branch r0 {{ {OVER} }} else {{ }}", BRANCH), "condition flag"),
        (("copy b3 = b0 r1", f"loop r3 < r0 {{ {OVER} }}", BRANCH), "condition flag"),
        (("view b5 = b3 + r1", "copy b5 = b0 r1", OVER, BRANCH), "condition flag"),
        (("view b5 = b3 + r1", "copy b5 = b0 r1", BRANCH), "condition flag"),
        (("branch b0 { copy b3 = b2 r1 } else { }", BRANCH), "condition flag"),
        # a later trip reads a value that an earlier trip wrote
        ((f"loop r3 < r0 {{ {BRANCH} copy b3 = b4 r1 copy b4 = b0 r1 }}",), "condition flag"),
        # the condition is equal in a group only
        ((EQUAL_ROWS, COMPARE, BRANCH), "condition flag"),
        ((EQUAL_ROWS, COMPARE, f"branch b3 {{ {COLUMNS} }} else {{ }}"), "condition flag"),
        ((COMPARE.replace("b4", "b0"), f"branch b3 {{ {ROWS} }} else {{ }}"), "condition flag"),
        (
            (EQUAL_ROWS, COMPARE, f"branch b3 {{ {EQUAL_ROWS} }} else {{ }}", BRANCH),
            "condition flag",
        ),
        (("r3 = rank()", f"loop r4 < r3 {{ {REDUCE} }}"), "in a loop whose condition or number"),
        ((READ, f"loop r4 < r3 {{ {REDUCE} }}"), "in a loop whose condition or number"),
        ((READ, "r4 = add(r3, r0)", f"branch r4 {{ }} else {{ {REDUCE} }}"), "condition or number"),
        ((f"branch b0 {{ loop r3 < r0 {{ {REDUCE} }} }} else {{ }}",), "condition x"),
        ((f"loop r3 < r0 while b0 {{ {REDUCE} }}",), "in a loop whose condition x"),
    ],
    ids=str,
)  # fmt: skip
def test_conditions_that_may_differ_between_ranks_are_refused(
    lines: tuple[str, ...], why: str
) -> None:
    with pytest.raises(UserError, match="ranks may issue different collectives") as caught:
        check_lockstep(program(*lines), [(2,)])
    assert why in caught.value.why
    assert caught.value.where == "all_reduce of x"


def test_a_program_without_inputs_is_checked() -> None:
    original = program(
        "copy b3 = b2 r1",
        f"loop r3 < r1 {{ {OWN.replace('b0', 'b2')} }}",
        "copy b3 = b4 r1",
        BRANCH,
    )
    buffers = (replace(original.buffers[2], label="x"), *original.buffers[1:])
    with pytest.raises(UserError, match="condition flag"):
        check_lockstep(replace(original, buffers=buffers), [(2,)])


def test_states_keep_values_of_earlier_runs() -> None:
    lines = (f"branch b3 {{ {REDUCE} }} else {{ }}", "copy b3 = b4 r1")
    original = program(*lines)
    buffers = (
        *original.buffers[:3],
        replace(original.buffers[3], place=State(64)),
        *original.buffers[4:],
    )
    check_lockstep(replace(original, buffers=buffers), [(2,)])
    original = program(*lines, "copy b4 = b0 r1")
    check_lockstep(replace(original, buffers=buffers), [(2,)])
    states = (*buffers[:4], replace(original.buffers[4], place=State(64)), *buffers[5:])
    with pytest.raises(UserError, match="condition flag"):
        check_lockstep(replace(original, buffers=states), [(2,)])


def test_states_that_inputs_hold_may_differ() -> None:
    original = program(f"branch b1 {{ {REDUCE} }} else {{ }}")
    ports = (replace(original.outputs[0], state=0),)
    check_lockstep(program(f"branch b2 {{ {REDUCE} }} else {{ }}"), [(2,)])
    with pytest.raises(UserError, match="condition y"):
        check_lockstep(replace(original, outputs=ports), [(2,)])
