"""Registers hold the value of their index, in all scopes and for data-dependent sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcc.errors import InternalError, UserError
from tcc.ir.index import Index, ceildiv, const, evaluate, maximum, minimum, symbol
from tcc.ir.program import Instr, IntOp, Let, Register
from tcc.passes.program.lower_sizes import SizeRegisters

N, M = symbol("n", 0), symbol("m", 1)


def run(out: Sequence[Instr], values: dict[Register, int]) -> dict[Register, int]:
    """Executes the instructions, and checks that each register is written once, from registers
    written before."""
    for instr in out:
        assert isinstance(instr, Let)
        assert instr.target not in values
        if instr.op is IntOp.CONST:
            values[instr.target] = instr.a
            continue
        a, b = values[instr.a], values[instr.b]
        values[instr.target] = {
            IntOp.ADD: lambda a, b: a + b,
            IntOp.SUB: lambda a, b: a - b,
            IntOp.MUL: lambda a, b: a * b,
            IntOp.FLOORDIV: lambda a, b: a // b,
            IntOp.MOD: lambda a, b: a % b,
            IntOp.MIN: min,
            IntOp.MAX: max,
        }[instr.op](a, b)
    return values


def bound(**sizes: int) -> tuple[SizeRegisters, dict[Register, int]]:
    registers, values = SizeRegisters(), {}
    for name, size in sizes.items():
        resident = registers.fresh()
        registers.bind(name, resident)
        values[resident] = size
    return registers, values


leaves = st.sampled_from([N, M]) | st.integers(-6, 9).map(const)
positive = st.integers(1, 7).map(const) | st.just(M)
indices = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a // b, inner, positive),
        st.builds(lambda a, b: a % b, inner, positive),
        st.builds(ceildiv, inner, positive),
        st.builds(minimum, inner, inner),
        st.builds(maximum, inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(indices, min_size=1, max_size=4), st.integers(0, 20), st.integers(1, 9))
def test_a_register_holds_the_value_of_its_index(sizes: list[Index], n: int, m: int) -> None:
    registers, values = bound(n=n, m=m)
    out: list[Instr] = []
    resident = [registers.load(size, out) for size in sizes]
    run(out, values)
    given_: Mapping[str, int] = {"n": n, "m": m}
    assert [values[r] for r in resident] == [evaluate(size, given_) for size in sizes]
    assert registers.count == len(values)


def test_each_size_is_computed_once() -> None:
    registers, _ = bound(n=3)
    out: list[Instr] = []
    first = registers.load(N * 64 + 1, out)
    count = len(out)
    assert registers.load(N * 64 + 1, out) == first
    assert registers.load(const(64), out) in {i.target for i in out if isinstance(i, Let)}
    assert len(out) == count


def test_a_body_sees_what_was_before_it_and_gives_nothing_back() -> None:
    registers, values = bound(n=3)
    out: list[Instr] = []
    before = registers.load(N * 2, out)
    inner, body = registers.inner(), []
    assert inner.load(N * 2, body) == before
    assert body == []
    product_in_body = inner.load(N * 5, body)
    after = registers.load(N * 5, out)
    assert after != product_in_body
    assert registers.load(N * 5, out) == after
    run([*out, *body], values)
    assert values[product_in_body] == values[after] == 15


def test_a_symbol_of_a_body_is_unknown_around_it() -> None:
    registers, _ = bound(n=3)
    inner = registers.inner()
    inner.bind("k", inner.fresh(), late=True)
    assert inner.is_late(symbol("k") + N)
    assert not registers.bound("k")
    assert not registers.is_late(symbol("k"))
    with pytest.raises(InternalError, match="size k is used before"):
        registers.load(symbol("k"), [])


def test_a_late_symbol_makes_sizes_late_and_is_computed_anew() -> None:
    registers, values = bound(n=3, k=7)
    k = symbol("k")
    out: list[Instr] = []
    old, sum_before = registers.load(k + N, out), registers.load(N + 1, out)
    assert not registers.is_late(k + N)
    changed = registers.fresh()
    registers.bind("k", changed, late=True)
    values[changed] = 50
    assert registers.is_late(minimum(k, N))
    assert not registers.is_late(N * 4)
    new = registers.load(k + N, out)
    assert registers.load(N + 1, out) == sum_before
    run(out, values)
    assert (values[old], values[new]) == (10, 53)


def test_zero_and_scalars_need_no_symbols() -> None:
    registers, values = bound()
    out: list[Instr] = []
    zero, one = registers.load(const(0), out), registers.load(const(1), out)
    run(out, values)
    assert (values[zero], values[one]) == (0, 1)


def test_a_symbol_that_stands_for_a_formula_is_computed_where_it_is_needed() -> None:
    registers, values = bound(n=5, m=3)
    registers.define("s", N * 4 + M)
    registers.define("t", symbol("s") // 2)
    registers.define("unused", N * (1 << 62))
    out: list[Instr] = []
    register = registers.load(symbol("t") + symbol("s"), out)
    assert registers.bound("t")
    assert run(out, values)[register] == 23 // 2 + 23
    assert len(out) == len({(i.op, i.a, i.b) for i in out if isinstance(i, Let)})


def test_a_formula_of_a_data_dependent_size_is_late_too() -> None:
    registers, _ = bound(n=5, m=3)
    registers.define("s", N * 4 + M)
    assert not registers.is_late(symbol("s"))
    registers.bind("k", registers.fresh(), late=True)
    registers.define("t", symbol("k") + symbol("s"))
    registers.define("u", symbol("t") // 2)
    assert registers.is_late(symbol("u"))


def test_a_number_that_no_register_holds_is_refused() -> None:
    registers, _ = bound(n=5)
    with pytest.raises(UserError, match="too large"):
        registers.load(N * (1 << 63), [])
