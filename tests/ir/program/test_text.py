"""The text of a host program contains every instruction and every place."""

from __future__ import annotations

import pytest
from tcc.errors import UserError
from tcc.ir.program.text import program_text

from tests.lib.oracle.program.parse import parse_program

TEXT = """\
program registers 9 scratch 64 arena r8
  input "x" : f32[r0,r1] "[n,4]"
  output "a\\"b" : bf16[] "" state 0
  kernel "k"
  buffer b0 = input(0) "x"
  buffer b1 = output(0) "odd \\u00e9 label"
  buffer b2 = weight(64, 128) ""
  buffer b3 = arena(r2, r3) "kept"
  buffer b4 = arena(none, r3) ""
  buffer b5 = state(16) ""
  buffer b6 = dynamic() ""
  buffer b7 = alias() ""
  buffer b8 = symmetric(r2, r3) ""
  group "rows \\"of\\" two" (0, 1) (3, 2)
  group "" (2)
{
  r0 = dim(0, 1)
  r1 = const -4
  r2 = floordiv(r0, r1)
  r3 = read b0[2] : i64
  check r0 divides r1 "input x: no"
  allocate b6 r3 keep
  allocate b1 r3
  view b7 = b6 + r2
  launch k0 r1 (b0, b1) (r0, r1) least r0
  launch k0 r1 () ()
  call "sort" (b0 : f32[r0,r1]) (b1 : i64[], b3 : f32[r0]) (-1, 0) (r4)
  copy b3 = b0 r3
  r2 = rank()
  collective all_reduce avg b3 = b0 (r3) : f32 ranks 0 root 0 t0
  collective broadcast sum b3 = b0 (r3) : i64 ranks 4 root 3 t12
  wait t12 b3 = b0
  collective all_gather sum b3 = b0 (r3, r4) : u8 ranks 1 root 0 t1 in g1
  branch b5 {
    loop r5 < r0 while b5 {
    }
  } else {
    loop r5 < r0 {
      r7 = max(r0, r5)
    }
  }
}
"""


def test_every_instruction_round_trips() -> None:
    program = parse_program(TEXT)
    text = program_text(program)
    assert text.replace(",", ", ").replace(",  ", ", ") == TEXT.replace(",", ", ").replace(
        ",  ", ", "
    )
    assert parse_program(text) == program
    assert program.inputs[0].dims == (0, 1)
    assert program.buffers[4].place.offset == -1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("floordiv", "shift", "no instruction has this name"),
        ("divides", "near", "no relation"),
        ("all_reduce avg", "all avg", "no collective has this name"),
        ("all_reduce avg", "all_reduce mean", "no reduction has this name"),
        ("buffer b2", "buffer b3", "b2 is due"),
        ("weight(64, 128)", "wait(64, 128)", "no place has this form"),
        ("weight(64, 128)", "weight(64)", "',' is due"),
        ("launch k0", "launch b0", "k0, k1"),
        ("in g1", "in t1", "g0, g1"),
        ("(3, 2)", "(3 2)", "',' is due"),
    ],
)
def test_wrong_texts_are_refused_with_their_place(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_program(TEXT.replace(old, new, 1))
    assert caught.value.where.startswith("line ")
