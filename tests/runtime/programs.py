"""Hand-written programs and C kernels, as a compiler would generate them, small enough to check by
eye."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tcc.backends.artifact.assets import NO_ASSETS
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.variant import Variant
from tcc.backends.artifact.weight_section import BytesLike
from tcc.ir.lists import sequence_of
from tcc.ir.program import (
    Alias,
    Allocate,
    Arena,
    Branch,
    Buffer,
    BufferId,
    CallOp,
    Check,
    Collective,
    CollectiveKind,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Loop,
    Output,
    Place,
    PlanArena,
    Port,
    Program,
    RankGroup,
    ReadInt,
    Reduction,
    Register,
    Relation,
    State,
    Symmetric,
    TensorRef,
    View,
    Wait,
    Weight,
)
from tcc.ir.types import DTYPES

KERNELS = r"""
#include <stdint.h>
#define KERNEL(name) __attribute__((visibility("hidden"))) void name(void *const *b, \
    const int64_t *n, int64_t begin, int64_t end, void *scratch)
/* y[u] = max(x[u], 0) */
KERNEL(relu) {
    const float *x = b[0]; float *y = b[1]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = x[u] > 0 ? x[u] : 0;
}
/* c[u] = a[u] + b[u] */
KERNEL(add) {
    const float *x = b[0], *w = b[1]; float *y = b[2]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = x[u] + w[u];
}
/* row u of y = row u of x times i, over n[0] columns, through scratch */
KERNEL(scale_rows) {
    const float *x = b[0]; float *y = b[1], *room = scratch;
    for (int64_t u = begin; u < end; u++) {
        for (int64_t i = 0; i < n[0]; i++) room[i] = x[u * n[0] + i] * (float)n[1];
        for (int64_t i = 0; i < n[0]; i++) y[u * n[0] + i] = room[i];
    }
}
/* total += x[0]; y[0] = total */
KERNEL(accumulate) {
    const float *x = b[0]; float *total = b[1], *y = b[2]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) { *total += *x; *y = *total; }
}
/* flag = x[0] > 0 */
KERNEL(positive) {
    const float *x = b[0]; uint8_t *flag = b[1]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) *flag = x[0] > 0;
}
/* y[u] = n[0] */
KERNEL(fill) {
    float *y = b[0]; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = (float)n[0];
}
/* y[u] = sum of a slow series that depends on u only */
KERNEL(slow) {
    const float *x = b[0]; float *y = b[1]; (void)scratch;
    for (int64_t u = begin; u < end; u++) {
        float sum = 0;
        for (int64_t i = 0; i < n[0]; i++) sum = sum * 0.5f + x[u];
        y[u] = sum;
    }
}
/* y[u] = the units of the part that u is done with */
KERNEL(share) {
    float *y = b[0]; (void)n; (void)scratch;
    for (int64_t u = begin; u < end; u++) y[u] = (float)(end - begin);
}
/* y[u] = sum of all n[0] elements of w */
KERNEL(total) {
    const float *w = b[0]; float *y = b[1]; (void)scratch;
    for (int64_t u = begin; u < end; u++) {
        float sum = 0;
        for (int64_t i = 0; i < n[0]; i++) sum += w[i];
        y[u] = sum;
    }
}
"""
KERNEL_NAMES = (
    "relu", "add", "scale_rows", "accumulate", "positive", "fill", "slow", "share", "total",
)  # fmt: skip


@dataclass
class Builder:
    """Collects registers, buffers, ports and instructions."""

    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    body: list[Instr] = field(default_factory=list)
    registers: int = 0
    scratch: int = 0
    arena: Register = 0
    groups: tuple[RankGroup, ...] = ()

    def __post_init__(self) -> None:
        self.arena = self.let(IntOp.CONST, 0)

    def register(self) -> Register:
        self.registers += 1
        return self.registers - 1

    def let(self, op: IntOp, a: int = 0, b: int = 0) -> Register:
        target = self.register()
        self.body.append(Let(target, op, a, b))
        return target

    def const(self, value: int) -> Register:
        return self.let(IntOp.CONST, value)

    def buffer(self, place: Place, label: str = "") -> BufferId:
        self.buffers.append(Buffer(place, label))
        return len(self.buffers) - 1

    def input(self, name: str, dtype: str, dims: Sequence[Register], text: str) -> int:
        self.inputs.append(Port(name, DTYPES[dtype], tuple(dims), text))
        return len(self.inputs) - 1

    def output(
        self, name: str, dtype: str, dims: Sequence[Register], text: str, state: int = -1
    ) -> BufferId:
        self.outputs.append(Port(name, DTYPES[dtype], tuple(dims), text, state))
        return self.buffer(Output(len(self.outputs) - 1), name)

    def allocate(self, buffer: BufferId, size: Register, keep: bool = False) -> None:
        self.body.append(Allocate(buffer, size, keep))

    def launch(
        self,
        kernel: str,
        grid: Register,
        buffers: Sequence[BufferId],
        ints: Sequence[Register] = (),
        least: Register = -1,
    ) -> None:
        number = KERNEL_NAMES.index(kernel)
        self.body.append(Launch(number, grid, tuple(buffers), tuple(ints), least))

    def program(self) -> Program:
        return Program(
            tuple(self.inputs), tuple(self.outputs), self.registers, tuple(self.buffers),
            KERNEL_NAMES, self.scratch, self.arena, tuple(self.body), self.groups,
        )  # fmt: skip


def compile_kernels(folder: Path) -> bytes:
    """Returns the object file with all of KERNELS."""
    (folder / "kernels.c").write_text(KERNELS)
    command = ("cc", "-O2", "-fPIC", "-std=c11", "-Wall", "-Werror", "-c", "kernels.c", "-o", "k.o")
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "k.o").read_bytes()


def link(
    program: Program,
    kernels: bytes,
    out: Path,
    *,
    name: str = "mini",
    weights: Sequence[BytesLike] = (),
    features: Sequence[str] = (),
    side_file: bool = False,
    emit: str = "shared",
    assets: Mapping[str, bytes] = NO_ASSETS,
) -> dict[str, Any]:
    """Links a hand-written program as the driver would; returns the manifest."""
    variant = Variant("cpu", program, weights, (kernels,), features)
    return link_artifact(
        [variant], {"tcc": "test"}, name, out, side_file=side_file, emit=emit, assets=assets
    )


def mlp() -> tuple[Program, bytes]:
    """Returns y = relu(x) + w for x: f32[n] with n <= 64, and the weights 1, 2, ..., 64."""
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    most, four, zero = b.const(64), b.const(4), b.const(0)
    b.body.append(Check(Relation.LE, n, most, "input 'x': n is at most 64"))
    size = b.let(IntOp.MUL, n, four)
    b.arena = size
    b.input("x", "f32", [n], "[n]")
    x, w = b.buffer(Input(0), "x"), b.buffer(Weight(0, 256), "w")
    middle, y = b.buffer(Arena(zero, size)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    b.launch("relu", n, [x, middle])
    b.launch("add", n, [middle, w, y])
    return b.program(), np.arange(1, 65, dtype=np.float32).tobytes()


def totalling(size: int) -> Program:
    """Returns y = [sum of the weights], where the weights are `size` bytes of f32 and a run reads
    all."""
    b = Builder()
    one, count = b.const(1), b.const(size // 4)
    w, y = b.buffer(Weight(0, size), "w"), b.output("y", "f32", [one], "[1]")
    b.allocate(y, b.const(4))
    b.launch("total", one, [w, y], [count])
    return b.program()


def filling(dynamic: bool = False) -> Program:
    """Returns y = [count] for an integer `count`, after `count` elements were filled with it, in
    the arena, or in memory of the run's pool if `dynamic`."""
    b = Builder()
    count, one, four, zero = b.register(), b.const(1), b.const(4), b.const(0)
    b.input("count", "i64", [], "[]")
    source = b.buffer(Input(0))
    b.body.append(ReadInt(count, source, DTYPES["i64"]))
    size = b.let(IntOp.MUL, count, four)
    room = b.buffer(Dynamic() if dynamic else Arena(zero, size))
    y = b.output("y", "f32", [one], "[1]")
    if dynamic:
        b.allocate(room, size)
    else:
        b.arena = size
    b.allocate(y, four)
    b.launch("fill", count, [room], [count])
    b.body.append(Copy(y, room, four))
    return b.program()


def enduring() -> tuple[Program, bytes]:
    """Returns y = count + [1, 2, 3, 4] for an integer `count`, by way of `count` elements in the
    arena and in pool memory, and large weights."""
    b = Builder()
    count, four, sixteen, zero = b.register(), b.const(4), b.const(16), b.const(0)
    b.input("count", "i64", [], "[]")
    source = b.buffer(Input(0))
    b.body.append(ReadInt(count, source, DTYPES["i64"]))
    b.arena = size = b.let(IntOp.MUL, count, four)
    planned, growing, w = b.buffer(Arena(zero, size)), b.buffer(Dynamic()), b.buffer(Weight(0, 16))
    y = b.output("y", "f32", [four], "[4]")
    b.allocate(growing, size)
    b.allocate(y, sixteen)
    b.launch("fill", count, [planned], [count])
    b.launch("relu", count, [planned, growing])
    b.launch("add", four, [growing, w, y])
    return b.program(), np.arange(1, 5, dtype=np.float32).tobytes().ljust(8 << 20, b"\1")


def planned(steps: int = 4) -> Program:
    """Returns y = relu(x) for x: f32[n], after `steps` launches; each run plans the memory between
    them."""
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    size = b.let(IntOp.MUL, n, b.const(4))
    b.input("x", "f32", [n], "[n]")
    offsets = [b.register() for _ in range(1, steps)]
    b.arena = b.register()
    lives = [number for at in range(1, steps) for number in (at - 1, at, -1)]
    b.body.append(PlanArena(b.arena, tuple(offsets), (size,) * len(offsets), tuple(lives)))
    chain = [b.buffer(Input(0), "x"), *(b.buffer(Arena(o, size)) for o in offsets)]
    y = b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    for source, target in pairwise((*chain, y)):
        b.launch("relu", n, [source, target])
    return b.program()


def collectives(groups: tuple[RankGroup, ...] = ()) -> Program:
    """Returns a program of every kind of collective on x: f32[n], among two ranks, or in turn among
    the groups.

    Collectives with several counts are included; y has 2n elements.
    """
    b = Builder()
    b.groups = groups
    b.const(1000)  # register 0, which a damaged count may name
    n, two = b.let(IntOp.DIM, 0, 0), b.const(2)
    half, twice = b.let(IntOp.FLOORDIV, n, two), b.let(IntOp.MUL, n, two)
    b.input("x", "f32", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [twice], "[2*n]")
    b.allocate(y, b.let(IntOp.MUL, n, b.const(8)))
    for number, kind in enumerate(CollectiveKind):
        count = half if kind.sends_blocks else n
        reduction = Reduction.MAX if kind.reduces else Reduction.SUM
        root = 1 if kind is CollectiveKind.BROADCAST else 0
        group = number % len(groups) if groups else -1
        blocks = 2 + (2 if kind.sends_blocks else 1) if kind.receives_blocks else 1
        for counts in dict.fromkeys(((count,), (count,) * blocks)):
            start = Collective(kind, reduction, x, y, counts, DTYPES["f32"], 2, root, root, group)
            b.body += [start, Wait(root, x, y)]
    return b.program()


def every_instruction() -> Program:
    """Returns a program with each kind of instruction and place, for round trips; it is never
    run."""
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    k, flag = b.const(3), b.register()
    b.input("x", "f32", [n], "[n]")
    b.input("k", "i64", [], "[]")
    x, kb = b.buffer(Input(0), "x"), b.buffer(Input(1), "k")
    y = b.output("y", "f32", [k], "[3]")
    b.output("x_out", "f32", [n], "[n]", state=0)
    w, a, c = b.buffer(Weight(0, 64)), b.buffer(Arena(0, k)), b.buffer(Symmetric(k, n))
    state, dynamic = b.buffer(State(100)), b.buffer(Dynamic())
    alias, indices = b.buffer(Alias()), b.buffer(Dynamic())
    b.body += [
        ReadInt(flag, kb, DTYPES["i64"], 0),
        Check(Relation.DIVIDES, k, n, "n is a multiple of 3"),
    ]
    b.let(IntOp.RANK)
    for op in (IntOp.ADD, IntOp.SUB, IntOp.MUL, IntOp.FLOORDIV, IntOp.MOD, IntOp.MIN, IntOp.MAX):
        b.let(op, n, k)
    b.allocate(y, k)
    b.body += [
        Allocate(dynamic, n),
        Allocate(indices, n, True),
        View(alias, dynamic, k),
        CallOp(
            "top_k",
            (TensorRef(x, DTYPES["f32"], (n,)),),
            (TensorRef(y, DTYPES["f32"], (k,)), TensorRef(indices, DTYPES["i64"], (k,))),
            (0, 1, 1),
        ),
        Copy(y, dynamic, k),
        Copy(c, y, k),
        Collective(
            CollectiveKind.ALL_TO_ALL, Reduction.SUM, x, y, (k, n, k, n), DTYPES["f32"], 2, 0, 3
        ),
        Wait(3, x, y),
        Loop(k, -1, flag, (Branch(w, (Copy(a, x, k),), (Copy(state, x, k),)),)),
        Branch(-1, (Copy(a, x, k),), (Copy(state, x, k),), flag),
    ]
    b.launch("fill", k, [y], [n])
    return b.program()


def no_loops() -> Program:
    """Returns `every_instruction` without its loop, so that damage cannot make it run forever."""
    program = every_instruction()
    return replace(program, body=tuple(i for i in program.body if not isinstance(i, Loop)))


def nested(depth: int) -> Program:
    """Returns nested branches that all read the single input."""
    b = Builder()
    b.input("flag", "bool", [], "[]")
    flag = b.buffer(Input(0))
    body: tuple[Instr, ...] = ()
    for _ in range(depth):
        body = (Branch(flag, body, ()),)
    b.body.extend(body)
    return b.program()


def doubling() -> Program:
    """Returns y = x + x for x: f32[n], without weights."""
    b = Builder()
    n = b.let(IntOp.DIM, 0, 0)
    size = b.let(IntOp.MUL, n, b.const(4))
    b.input("x", "f32", [n], "[n]")
    x, y = b.buffer(Input(0)), b.output("y", "f32", [n], "[n]")
    b.allocate(y, size)
    b.launch("add", n, [x, x, y])
    return b.program()


def updating(state: int, other: int = 4) -> Program:
    """Returns x[i] += x[i] in place for a state x of `state` floats, and y of `other` floats that
    no launch writes."""
    b = Builder()
    size, count = b.const(state), b.const(other)
    b.input("x", "f32", [size], f"[{state}]")
    x = b.buffer(Input(0))
    b.input("y", "f32", [count], f"[{other}]")
    b.output("x_out", "f32", [size], f"[{state}]", state=0)
    b.launch("add", size, [x, x, x])
    return b.program()


def holding(
    arena: int = 0, state: int = 0, symmetric: int = 0, scratch: int = 0, steps: int = 8
) -> Program:
    """Returns `updating(steps)` with the given bytes of each kind of memory."""
    b = Builder(scratch=scratch)
    size, zero = b.const(steps), b.const(0)
    b.input("x", "f32", [size], f"[{steps}]")
    x = b.buffer(Input(0))
    b.output("x_out", "f32", [size], f"[{steps}]", state=0)
    b.arena = b.const(arena)
    b.buffer(Arena(zero, b.arena))
    if state:
        b.buffer(State(state))
    if symmetric:
        b.buffer(Symmetric(zero, b.const(symmetric)))
    b.launch("add", size, [x, x, x])
    return b.program()


def handles() -> Program:
    """Returns a program with every function on strings and lists, for three strings and a list."""
    b = Builder()
    three, eight, bytes_ = b.const(3), b.const(8), b.const(24)
    table, classes = b.const(4), b.const(256)
    one, none = b.const(1), b.const(0)
    extent_of_input = b.let(IntOp.DIM, 0, 0)
    b.input("s", "string", [three], "[3]")
    b.inputs.append(Port("l", sequence_of(DTYPES["i64"]), (), "sequence(i64)"))
    b.body.append(Check(Relation.EQ, extent_of_input, three, "three strings"))
    word, string = DTYPES["u64"], 3 << 8 | 128
    s = TensorRef(b.buffer(Input(0)), word, (three,))
    first = TensorRef(b.buffer(Input(1)), word, ())
    y = b.output("y", "string", [three], "[3]")
    b.outputs.append(Port("m", sequence_of(DTYPES["i64"]), (), "sequence(i64)"))
    m = b.buffer(Output(1), "m")
    zeros = b.buffer(Weight(0, 4096))
    b.allocate(y, bytes_)
    b.allocate(m, eight)

    def made(
        dims: tuple[Register, ...] = (three,), dtype: str = "u64", size: Register = -1
    ) -> TensorRef:
        buffer = b.buffer(Dynamic())
        b.allocate(buffer, size if size >= 0 else bytes_ if dims else eight)
        return TensorRef(buffer, DTYPES[dtype], dims)

    def call(
        op: str, inputs: Sequence[TensorRef], outputs: Sequence[TensorRef], *ints: int
    ) -> None:
        b.body.append(CallOp(op, tuple(inputs), tuple(outputs), ints))

    def counted(op: str, inputs: Sequence[TensorRef], *ints: int) -> Register:
        register = b.register()
        b.body.append(CallOp(op, tuple(inputs), (), ints, (register,)))
        return register

    def zero(dtype: str, *dims: Register) -> TensorRef:
        return TensorRef(zeros, DTYPES[dtype], dims)

    doubled, ranks, ordered = made(), made(dtype="i64"), made()
    call("string_concat", (s, s), (doubled,))
    pieces = counted("string_split_count", (doubled,), -1, ord("b"))
    room = b.let(IntOp.MUL, pieces, bytes_)
    counts = made(dtype="i64")
    call("string_split", (doubled,), (made((three, pieces), size=room), counts), -1, ord("b"))
    call("string_rank", (s,), (ranks, ordered))
    left = counted("string_remove_count", (s, s, ordered))
    call("string_remove", (s, s, ordered), (made((left,)),))
    call("string_case", (s, zero("i32", table, table)), (TensorRef(y, word, (three,)),))
    automaton = zero("u8", classes), zero("i32", one, one), zero("u8", one)
    call("string_match", (s, *automaton), (made(dtype="bool"),))
    call("string_decode", (zero("u8", table), zero("i64", three)), (made(),))
    text = made()
    call("string_format", (ranks,), (text,))
    call("string_parse", (text,), (made(dtype="i64"),))
    columns = made((one,), "f32")
    tables = zero("i64", one), zero("i64", three), zero("f32", none)
    call("tf_idf", (counts, ranks, *tables), (columns,), 2, 1, 1, 0)
    more, less, length = made(()), made(()), made((), "i64")
    call("list_insert", (first, doubled, zero("i64")), (more,), string)
    call("list_erase", (more,), (less,))
    call("list_length", (more,), (length,))
    size = counted("list_shape", (less, zero("i64")), string, 1, -1)
    call("list_at", (less, zero("i64")), (made((size,)),), string, 1, -1)
    part, checked = made(()), made(())
    call("list_split", (ranks, length), (part,), 0, 1, 64)
    call("list_expect", (part,), (checked,), 2, 0, 64, 1, -1)
    extent = counted("list_concat_shape", (checked,), 0, 0, 64)
    call("list_concat", (checked,), (made((extent,), "i64"),), 0, 0, 64)
    call("list_make", (less, more), (TensorRef(m, word, ()),), 3 << 8 | 64)
    return b.program()


def expected_mlp(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(x, 0) + np.arange(1, len(x) + 1, dtype=np.float32)
