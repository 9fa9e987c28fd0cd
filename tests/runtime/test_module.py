"""Modules run programs with branches, loops, views, dynamic and in-place outputs and states, and
refuse others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import programs
import pytest
from programs import Builder, expected_mlp
from tcc import runtime
from tcc.ir.program import (
    Alias,
    Arena,
    Branch,
    CallOp,
    Check,
    Copy,
    Dynamic,
    Input,
    IntOp,
    Launch,
    Let,
    Loop,
    ReadInt,
    Relation,
    State,
    TensorRef,
    View,
)
from tcc.ir.program.operands import steps_of
from tcc.ir.types import DTYPES
from tcc.runtime import Module, abi, load
from tcc.runtime.arrays import view_of
from tcc.runtime.packed import LIMITS, pack

torch = pytest.importorskip("torch")

Linker = Callable[..., Module]


@pytest.mark.parametrize("n", [0, 1, 7, 64])
def test_one_artifact_serves_all_sizes(mlp: Module, n: int) -> None:
    x = np.linspace(-1, 1, n, dtype=np.float32)
    assert np.array_equal(mlp(x), expected_mlp(x))
    assert np.array_equal(mlp(x=x), expected_mlp(x))
    assert np.array_equal(mlp.run({"x": x})["y"], expected_mlp(x))


def test_ports_describe_themselves(mlp: Module) -> None:
    assert [(p.name, p.dtype, p.shape, p.text) for p in mlp.inputs] == [
        ("x", "f32", (None,), "[n]")
    ]
    assert mlp.outputs[0].name == "y"
    assert repr(mlp) == "Module(x: f32[n] -> y: f32[n])"


def test_strided_and_misaligned_and_read_only_inputs(mlp: Module) -> None:
    x = np.linspace(-1, 1, 60, dtype=np.float32)
    assert np.array_equal(mlp(x[::2]), expected_mlp(x[::2]))
    assert np.array_equal(mlp(x[::-1]), expected_mlp(x[::-1]))
    raw = np.zeros(4 * 10 + 1, np.uint8)
    shifted = raw[1:].view(np.float32)
    shifted[:] = x[:10]
    assert np.array_equal(mlp(shifted), expected_mlp(x[:10]))
    x.flags.writeable = False
    assert np.array_equal(mlp(x), expected_mlp(x))


class OnlyDlpack:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_torch_and_lists_and_other_dlpack_arrays(mlp: Module) -> None:
    x = torch.linspace(-1, 1, 8)
    y = mlp(x)
    assert isinstance(y, torch.Tensor)
    assert np.array_equal(y.numpy(), expected_mlp(x.numpy()))
    assert torch.equal(mlp(torch.stack([x, x], 1)[:, 0]), y)
    assert np.array_equal(mlp([1, -1, 2.5]), expected_mlp(np.array([1, -1, 2.5], np.float32)))
    assert np.array_equal(mlp(OnlyDlpack(x.numpy())), y.numpy())


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda m: m(z=np.zeros(1, np.float32)), "no input 'z'"),
        (lambda m: m(), "missing: x"),
        (lambda m: m.run(np.zeros(1, np.float32)), "takes a mapping"),
        (lambda m: m(1.0, 2.0), "expected 1 inputs, got 2"),
        (lambda m: m(np.zeros(1, np.float32), x=1), "both by position and by name"),
        (lambda m: m(np.zeros(1, np.float64)), "'x': expected element type f32, got f64"),
        (lambda m: m(np.zeros(1, np.complex64)), "'x': expected element type f32, got complex64"),
        (lambda m: m(np.zeros(1, ">f4")), "expected element type f32, got >f4"),
        (lambda m: m(np.zeros((2, 3), np.float32)), r"'x': expected shape \[n\], got \[2,3\]"),
        (lambda m: m(np.zeros((), np.float32)), r"'x': expected shape \[n\], got \[\]"),
        (lambda m: m(np.zeros(65, np.float32)), r"n is at most 64 \(65, 64\)"),
        (lambda m: m("text"), "input 'x' cannot be used"),
        (lambda m: m(None), "input 'x' cannot be used"),
        (lambda m: m([[1], [1, 2]]), "input 'x' cannot be used"),
        (lambda m: m(torch.zeros(2, dtype=torch.complex64)), "complex64 is not supported"),
        (lambda m: m(torch.zeros(2, device="meta")), "on the CPU"),
        (lambda m: m(torch.nested.nested_tensor([torch.zeros(2)])), "dense tensor"),
        (lambda m: m([1j]), "input 'x' cannot be used"),
        (lambda m: torch.func.vmap(m)(torch.zeros(2, 3)), "the tensor has no memory"),
        (lambda m: m([1e300]), "the values do not fit in f32"),
        (lambda m: m(OnlyDlpack(torch.zeros(2, dtype=torch.bfloat16))), "NumPy cannot read"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_wrong_inputs_are_named(mlp: Module, call: Callable[[Module], Any], pattern: str) -> None:
    with pytest.raises(RuntimeError, match=pattern) as raised:
        call(mlp)
    assert "to do: " in str(raised.value)


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn", "f4e2m1"])
def test_numbers_are_no_bit_patterns(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(abi, "numpy_dtype", abi.plain_dtype)  # as without ml_dtypes
    with pytest.raises(TypeError, match=f"become {dtype} only once ml_dtypes"):
        view_of([1.0, 2.0], dtype, False)
    view_of(np.ones(2, abi.plain_dtype(dtype)), dtype, False)


@pytest.mark.parametrize("dtype", ["i2", "u2", "i4", "u4"])
def test_numbers_become_packed_integers_only_where_they_fit(dtype: str) -> None:
    assert ml_dtypes.int4 is not None  # NumPy then knows the types by their names
    low, high = LIMITS[dtype]
    for value in (low - 1, high + 1, 200, 0.5, float("nan")):
        with pytest.raises(ValueError, match=f"the values do not fit in {dtype}"):
            view_of([1, value], dtype, False)
    assert view_of([low, high], dtype, False).owner.tolist() == [
        pack(np.array([low, high], abi.plain_dtype(dtype)), dtype)[0]
    ]


def test_packed_integers_of_torch_are_bytes_both_ways() -> None:
    packed = view_of(torch.tensor([-8, 7, 3], dtype=torch.int8), "i4", False)
    assert packed.owner.tolist() == [0x78, 0x03]
    assert (packed.tensor.dtype.bits, packed.tensor.shape[0]) == (4, 3)


def test_errors_are_made_by_the_caller(mlp_path: Path) -> None:
    class Mine(Exception):
        def __init__(self, what: str, **parts: str) -> None:
            super().__init__(what, parts)

    with pytest.raises(Mine, match="got f64"):
        load(mlp_path, error=Mine)(np.zeros(1))
    with pytest.raises(Mine, match="cannot be loaded"):
        load("/bin/sh", error=Mine)
    with pytest.raises(Mine, match="threads"):
        load(mlp_path, threads=100000, error=Mine)


def test_static_shapes_are_checked_against_the_port(linked: Linker) -> None:
    b = Builder()
    two, three, size = b.const(2), b.const(3), b.const(24)
    b.input("image", "f32", [two, three], "[2,3]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [two, three], "[2,3]")
    b.allocate(y, size)
    b.body.append(Copy(y, x, size))
    module = linked(b)
    assert module.inputs[0].shape == (2, 3)
    x_value = np.arange(6, dtype=np.float32).reshape(3, 2).T
    assert np.array_equal(module(x_value), x_value)
    with pytest.raises(RuntimeError, match=r"'image': expected shape \[2,3\], got \[2,4\]"):
        module(np.zeros((2, 4), np.float32))


def test_branches_take_the_side_of_their_condition(linked: Linker) -> None:
    b = Builder()
    one, four, seven, eight = b.const(1), b.const(4), b.const(7), b.const(8)
    b.input("x", "f32", [one], "[1]")
    b.arena = b.const(64)
    zero = b.const(0)
    x, flag = b.buffer(Input(0)), b.buffer(Arena(zero, one))
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.launch("positive", one, [x, flag])
    fill = programs.KERNEL_NAMES.index("fill")
    b.body.append(
        Branch(flag, (Launch(fill, one, (y,), (seven,)),), (Launch(fill, one, (y,), (eight,)),))
    )
    module = linked(b, poison=True)
    assert module(np.ones(1, np.float32)).tolist() == [7]
    assert module(-np.ones(1, np.float32)).tolist() == [8]


def test_loops_grow_outputs_that_data_decides(linked: Linker) -> None:
    """The output y = [0, 1, ..., trips-1] grows by one element at a time; trips is an input."""
    b = Builder()
    one, four = b.const(1), b.const(4)
    trips, counter, count, size, offset = (b.register() for _ in range(5))
    zero = b.const(0)
    b.input("trips", "i64", [], "[]")
    source, grown, tip = b.buffer(Input(0)), b.buffer(Dynamic()), b.buffer(Alias())
    y = b.output("y", "f32", [count], "[k]")
    fill = programs.KERNEL_NAMES.index("fill")
    b.body += [ReadInt(trips, source, DTYPES["i64"])]
    b.allocate(grown, zero)
    b.body += [
        Loop(
            trips,
            -1,
            counter,
            (
                Let(count, IntOp.ADD, counter, one),
                Let(size, IntOp.MUL, count, four),
                Let(offset, IntOp.MUL, counter, four),
                programs.Allocate(grown, size, True),
                View(tip, grown, offset),
                Launch(fill, one, (tip,), (counter,)),
            ),
        ),
        Let(count, IntOp.ADD, counter, zero),
        Let(size, IntOp.MUL, count, four),
    ]
    b.allocate(y, size)
    b.body.append(Copy(y, grown, size))
    module = linked(b, poison=True)
    for n in (0, 1, 5, 1000):
        assert module(np.int64(n)).tolist() == list(range(n))
    statistics = module.statistics()
    assert 4000 <= statistics.pool_high_water <= statistics.pool_bytes <= 1 << 16


def test_calls_decide_sizes_before_outputs_are_made(linked: Linker) -> None:
    b = Builder()
    n, one, eight = b.let(IntOp.DIM, 0, 0), b.const(1), b.const(8)
    count = b.register()
    b.input("x", "f32", [n], "[n]")
    x = TensorRef(b.buffer(Input(0)), DTYPES["f32"], (n,))
    y = b.output("y", "i64", [one, count], "[1,count]")
    b.body.append(CallOp("non_zero_count", (x,), (), (), (count,)))
    b.allocate(y, b.let(IntOp.MUL, count, eight))
    b.body.append(CallOp("non_zero", (x,), (TensorRef(y, DTYPES["i64"], (one, count)),), ()))
    module = linked(b, poison=True)
    assert module([1.0, 0.0, -3.0, 0.0]).tolist() == [[0, 2]]
    assert module([0.0]).shape == (1, 0)
    assert module(np.ones(1000, np.float32)).tolist() == [list(range(1000))]


def test_loop_conditions_stop_early(linked: Linker) -> None:
    """The loop subtracts while x is positive, and counts its trips."""
    b = Builder()
    one, four, hundred, zero = b.const(1), b.const(4), b.const(100), b.const(0)
    counter = b.register()
    b.arena = b.const(192)
    at64, at128 = b.const(64), b.const(128)
    b.input("x", "f32", [one], "[1]")
    b.input("step", "f32", [one], "[1]")
    x, step = b.buffer(Input(0)), b.buffer(Input(1))
    flag, value = b.buffer(Arena(zero, one)), b.buffer(Arena(at64, four))
    total = b.buffer(Arena(at128, four))
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.body.append(Copy(value, x, four))
    b.launch("positive", one, [value, flag])
    names = programs.KERNEL_NAMES.index
    b.body.append(
        Loop(
            hundred,
            flag,
            counter,
            (
                Launch(names("add"), one, (value, step, total), ()),
                Copy(value, total, four),
                Launch(names("positive"), one, (value, flag), ()),
            ),
        )
    )
    b.launch("fill", one, [y], [counter])
    module = linked(b, poison=True)
    minus = -np.ones(1, np.float32)
    assert module(np.full(1, 5, np.float32), minus).tolist() == [5]
    assert module(np.full(1, -5, np.float32), minus).tolist() == [0]
    assert module(np.ones(1, np.float32), -minus).tolist() == [100]


def test_state_lives_as_long_as_the_module(linked: Linker) -> None:
    b = Builder()
    one, four = b.const(1), b.const(4)
    b.input("x", "f32", [one], "[1]")
    x, total = b.buffer(Input(0)), b.buffer(State(4))
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.launch("accumulate", one, [x, total, y])
    module = linked(b, poison=True)
    assert [module([k]).item() for k in (1, 2, 3)] == [1, 3, 6]


def test_in_place_outputs_are_the_callers_arrays(linked: Linker) -> None:
    b = Builder()
    one, four = b.const(1), b.const(4)
    b.input("x", "f32", [one], "[1]")
    b.input("total", "f32", [one], "[1]")
    x = b.buffer(Input(0))
    total = b.output("new_total", "f32", [one], "[1]", state=1)
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.launch("accumulate", one, [x, total, y])
    module = linked(b)
    state = np.full(1, 10, np.float32)
    result, y_value = module(np.ones(1, np.float32), state)
    assert result is state
    assert state.tolist() == y_value.tolist() == [11]
    kept_torch = torch.full((1,), 20.0)
    assert module(torch.ones(1), kept_torch)[0] is kept_torch
    assert kept_torch.item() == 21
    state.flags.writeable = False
    with pytest.raises(RuntimeError, match="read-only"):
        module([1.0], state)
    with pytest.raises(RuntimeError, match="in place"):
        module([1.0], [1.0])
    negated = torch.zeros(1, dtype=torch.complex64).conj().imag
    with pytest.raises(RuntimeError, match="negated"):
        module([1.0], negated)


def test_arrays_that_are_updated_share_no_memory(linked: Linker) -> None:
    b = Builder()
    one, four = b.const(1), b.const(4)
    b.input("x", "f32", [one], "[1]")
    b.input("total", "f32", [one], "[1]")
    b.input("other", "f32", [one], "[1]")
    x = b.buffer(Input(0))
    total = b.output("new_total", "f32", [one], "[1]", state=1)
    other = b.output("new_other", "f32", [one], "[1]", state=2)
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.launch("accumulate", one, [x, total, y])
    b.launch("accumulate", one, [x, other, y])
    module = linked(b)
    states = np.full(2, 10, np.float32)
    assert module([1.0], states[:1], states[1:])[2].item() == 11
    with pytest.raises(RuntimeError, match="'total' is updated in place and shares memory with"):
        module([1.0], states[:1], states[:1])
    with pytest.raises(RuntimeError, match="shares memory with input 'x'"):
        module(states[1:], states[:1], states[1:])
    with pytest.raises(RuntimeError, match="shares memory with input 'x'"):
        module(torch.from_numpy(states[:1]), torch.zeros(1), torch.from_numpy(states)[:1])
    assert states.tolist() == [11, 11]


def test_size_arithmetic_that_overflows_is_an_error(linked: Linker) -> None:
    b = Builder()
    n, big = b.let(IntOp.DIM, 0, 0), b.const(1 << 62)
    b.input("x", "f32", [n], "[n]")
    b.let(IntOp.MUL, n, big)
    y = b.output("y", "f32", [n], "[n]")
    four = b.const(4)
    size = b.let(IntOp.MUL, n, four)
    b.allocate(y, size)
    b.launch("relu", n, [b.buffer(Input(0)), y])
    module = linked(b)
    assert module([1.0]).tolist() == [1]
    with pytest.raises(RuntimeError, match="too large"):
        module([1.0, 2.0])


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [
        (IntOp.FLOORDIV, -7, 2, -4),
        (IntOp.FLOORDIV, 7, 2, 3),
        (IntOp.MOD, -7, 2, 1),
        (IntOp.MOD, 7, 3, 1),
        (IntOp.MIN, -1, 1, -1),
        (IntOp.MAX, -1, 1, 1),
        (IntOp.SUB, 3, 5, -2),
        (IntOp.FLOORDIV, 1, 0, None),
        (IntOp.MOD, -(1 << 63), -1, None),
    ],
)
def test_integer_instructions(
    linked: Linker, op: IntOp, a: int, b: int, expected: int | None
) -> None:
    builder = Builder()
    one, four = builder.const(1), builder.const(4)
    value = builder.let(op, builder.const(a), builder.const(b))
    y = builder.output("y", "f32", [one], "[1]")
    builder.allocate(y, four)
    builder.launch("fill", one, [y], [value])
    module = linked(builder)
    if expected is None:
        with pytest.raises(RuntimeError, match="divided"):
            module()
    else:
        assert module().item() == expected


@pytest.mark.parametrize(
    ("relation", "a", "b", "holds"),
    [
        (Relation.EQ, 2, 2, True),
        (Relation.EQ, 2, 3, False),
        (Relation.LE, 2, 2, True),
        (Relation.LT, 2, 2, False),
        (Relation.DIVIDES, 3, 9, True),
        (Relation.DIVIDES, 3, 10, False),
        (Relation.DIVIDES, 0, 10, False),
    ],
)
def test_checks(linked: Linker, relation: Relation, a: int, b: int, holds: bool) -> None:
    builder = Builder()
    builder.body.append(Check(relation, builder.const(a), builder.const(b), "sizes must fit"))
    module = linked(builder)
    if holds:
        assert module() == ()
    else:
        with pytest.raises(RuntimeError, match=rf"sizes must fit \({a}, {b}\)"):
            module()


def test_programs_that_leave_their_memory_are_stopped(linked: Linker) -> None:
    b = Builder()
    one, four, eight = b.const(1), b.const(4), b.const(8)
    b.input("x", "f32", [one], "[1]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.body.append(Copy(y, x, eight))
    with pytest.raises(RuntimeError, match="outside"):
        linked(b)(np.ones(1, np.float32))


def test_an_output_that_no_path_writes_is_an_error(linked: Linker) -> None:
    b = Builder()
    b.output("y", "f32", [b.const(1)], "[1]")
    with pytest.raises(RuntimeError, match="'y' was not written"):
        linked(b)()


def test_many_threads_may_call_one_module(mlp: Module) -> None:
    failures: list[Any] = []

    def caller(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
        for _ in range(200):
            if not np.array_equal(mlp(x), expected_mlp(x)):
                failures.append(seed)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_give_bitwise_equal_results_and_use_their_own_scratch(linked: Linker) -> None:
    b = Builder()
    rows, columns, factor = b.let(IntOp.DIM, 0, 0), b.let(IntOp.DIM, 0, 1), b.const(3)
    four = b.const(4)
    size = b.let(IntOp.MUL, b.let(IntOp.MUL, rows, columns), four)
    b.input("x", "f32", [rows, columns], "[r,c]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [rows, columns], "[r,c]")
    b.scratch = 4 * 100
    b.allocate(y, size)
    b.launch("scale_rows", rows, [x, y], [columns, factor])
    x_value = np.random.default_rng(0).standard_normal((1001, 100)).astype(np.float32)
    for count in (1, 2, 3, 8):
        module = linked(b, threads=count, poison=True)
        for _ in range(20):
            assert np.array_equal(module(x_value), x_value * np.float32(3))
        assert module.statistics().threads == count


def test_save_copies_a_working_artifact(mlp: Module, tmp_path: Path) -> None:
    mlp.save(tmp_path / "second.so")
    x = np.ones(3, np.float32)
    assert np.array_equal(load(tmp_path / "second.so")(x), expected_mlp(x))
    for name in ("no folder/second.so", "a\0b.so"):
        with pytest.raises(RuntimeError, match="cannot be copied"):
            mlp.save(tmp_path / name)


def test_a_path_with_a_nul_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cannot be loaded as a tcc artifact"):
        load(tmp_path / "a\0b.so")


def test_loading_from_a_relative_path_survives_a_change_of_folder(
    mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.so").write_bytes(mlp_path.read_bytes())
    monkeypatch.chdir(tmp_path)
    module = load("a.so")
    monkeypatch.chdir("/")
    assert module([1.0]).tolist() == [2]


def test_weights_that_are_gone_are_a_clear_error(mlp_path: Path, tmp_path: Path) -> None:
    short_file = tmp_path / "cut.so"
    short_file.write_bytes(mlp_path.read_bytes()[:-64])
    with pytest.raises(RuntimeError, match=r"weights of '.*cut.so' are missing"):
        load(short_file)


def test_statistics_count_held_memory(mlp: Module) -> None:
    mlp(np.ones(64, np.float32))
    statistics = mlp.statistics()
    assert statistics.weight_bytes == 256
    assert statistics.arena_bytes == 256
    assert statistics.state_bytes == statistics.scratch_bytes == 0


def test_a_timed_module_takes_the_time_of_every_step(mlp_path: Path) -> None:
    module = load(mlp_path, timed=True)
    x = np.ones(64, np.float32)
    assert [t.count for t in module.times()] == [0, 0]
    for _ in range(3):
        np.testing.assert_array_equal(module(x), np.arange(2, 66))
    times = module.times()
    assert [t.count for t in times] == [3, 3]
    assert all(0 < t.seconds < 1 for t in times)


def test_steps_in_loops_and_branches_count_each_time(linked: Linker) -> None:
    b = Builder()
    one, four, three = b.const(1), b.const(4), b.const(3)
    b.input("x", "f32", [one], "[1]")
    x, y = b.buffer(Input(0), "x"), b.output("y", "f32", [one], "[1]")
    flag = b.buffer(State(64), "flag")
    b.allocate(y, four)
    b.launch("positive", one, [x, flag])
    relu, add = (programs.KERNEL_NAMES.index(n) for n in ("relu", "add"))
    launch_if, other = Launch(relu, one, (x, y), ()), Launch(add, one, (x, x, y), ())
    b.body.append(Branch(flag, (launch_if,), (other,)))
    b.body.append(Loop(three, -1, b.register(), (launch_if,)))
    module = linked(b, timed=True)
    module(np.ones(1, np.float32))
    module(-np.ones(1, np.float32))
    assert [t.count for t in module.times()] == [2, 1, 1, 6]
    positive = programs.KERNEL_NAMES.index("positive")
    assert steps_of(b.program().body) == (positive, relu, add, relu)


def test_an_untimed_module_has_no_times(mlp_path: Path) -> None:
    with pytest.raises(runtime.RuntimeFailure, match="TCC_TIMES"):
        load(mlp_path).times()
