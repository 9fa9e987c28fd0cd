"""LLVM IR as text: typed values, the code of a function, the shared parts of a module.

A `Reg` is an SSA value or a constant, with its element type, its number of lanes and its text. A
value of one lane is an LLVM scalar; a value of several lanes is a vector. `Code` appends
instructions to a function, and gives new values their names. `remember` keeps a value for later
code that the current place dominates.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from tcc.frozen import frozen
from tcc.ir.graph import rounded_number
from tcc.ir.types import F32
from tcc.target import Target

_T = TypeVar("_T")
_P = ParamSpec("_P")


@frozen
class Reg:
    """A typed LLVM value with `width` lanes of type `elem`; `text` is the text after the type."""

    elem: str
    width: int
    text: str

    @property
    def type(self) -> str:
        return vector_type(self.elem, self.width)

    @property
    def bytes(self) -> int:
        """The size in memory in bytes; undefined for i1."""
        return self.width * ({"float": 4, "double": 8}.get(self.elem) or int(self.elem[1:]) // 8)

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


@frozen
class ReservedLine:
    """A reserved place for later code: the empty line `lines[line]`.

    `values` are the values that were remembered at this place, by key.
    """

    lines: list[str]
    line: int
    values: dict[Hashable, Any]


# A value, or a number that becomes a constant of the type of the other operand.
Operand: TypeAlias = Reg | float


def vector_type(elem: str, width: int) -> str:
    return elem if width == 1 else f"<{width} x {elem}>"


def int_const(value: int, elem: str = "i64", width: int = 1) -> Reg:
    """Returns an integer constant, repeated over the lanes."""
    text = ("true" if value & 1 else "false") if elem == "i1" else str(value)
    return Reg(elem, width, text if width == 1 else f"splat ({elem} {text})")


def float_const(value: float, elem: str, width: int) -> Reg:
    """Returns a constant rounded to `elem`, repeated over the lanes."""
    if elem == "float":
        value = rounded_number(value, F32)
    bits = struct.unpack("<Q", struct.pack("<d", value))[0] if value == value else 0x7FF8 << 48
    text = f"0x{bits:016X}"
    return Reg(elem, width, text if width == 1 else f"splat ({elem} {text})")


def number(like: Reg, value: float) -> Reg:
    """Returns a constant of the type of `like`."""
    if like.elem.startswith("i"):
        return int_const(int(value), like.elem, like.width)
    return float_const(value, like.elem, like.width)


def _same_type(*operands: Operand) -> list[Reg]:
    """Returns the operands as values of one type; at least one of them is a value already."""
    like = next(x for x in operands if isinstance(x, Reg))
    return [x if isinstance(x, Reg) else number(like, x) for x in operands]


def lane_consts(values: Sequence[int], elem: str) -> Reg:
    """Returns a constant vector of integers."""
    lanes = ", ".join(str(int_const(v, elem)) for v in values)
    return Reg(elem, len(values), f"<{lanes}>")


class LlvmModule:
    """The parts that all functions of a module share: declarations, constants and helpers.

    Each is written once.
    """

    def __init__(self, target: Target) -> None:
        self.profile = target.profile
        self._parts: dict[str, str] = {}

    @property
    def lanes(self) -> int:
        """The number of lanes in a vector: the number of 32-bit elements that a register holds."""
        return self.profile.lanes(32)

    def add(self, name: str, make: Callable[[], str]) -> None:
        if name not in self._parts:
            # a placeholder while `make` runs, so that helpers may be recursive
            self._parts[name] = ""
            self._parts[name] = make()

    def procedure(self, params: str, body: str) -> str:
        """Returns the name of an internal function with these parameters and this body.

        The body has no return. Functions with equal texts are one function. It is not inlined.
        """
        name = f"tcc.{blake2b((params + body).encode(), digest_size=8).hexdigest()}"
        head = f"define internal void @{name}{params} noinline #0 {{\nentry:\n"
        self.add(name, lambda: f"{head}{body}\n  ret void\n}}")
        return name

    def text(self) -> str:
        return "\n".join(self._parts.values())


def remembered(
    make: Callable[Concatenate[Code, _P], _T],
) -> Callable[Concatenate[Code, _P], _T]:
    """Returns a function that calls `make` if no dominating place has done so with equal
    arguments."""

    def known(code: Code, /, *args: _P.args, **named: _P.kwargs) -> _T:
        return code.remember((make, *args), lambda: make(code, *args, **named))

    return known


class Code:
    """The instructions of one function, in order."""

    def __init__(self, module: LlvmModule, nontemporal: Collection[object] = ()) -> None:
        """`nontemporal` are buffers that begin at a cache line and whose stores bypass the
        caches."""
        self.module, self.nontemporal = module, nontemporal
        self.lines: list[str] = []
        self.label = "entry"
        self._count = 0
        self._known: dict[Hashable, Any] = {}
        self._stack = 0

    # ---- instructions --------------------------------------------------------------------------

    def emit(self, elem: str, width: int, text: str) -> Reg:
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return Reg(elem, width, name)

    def void(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def op(self, opcode: str, a: Operand, b: Operand, elem: str = "") -> Reg:
        """Emits a binary instruction on two values of one type, which the result has too unless
        `elem` is another element type."""
        x, y = _same_type(a, b)
        return self.emit(elem or x.elem, x.width, f"{opcode} {x}, {y.text}")

    def compare(self, predicate: str, a: Operand, b: Operand) -> Reg:
        """Compares two values; `predicate` includes the opcode, as in "fcmp ogt" or "icmp slt"."""
        return self.op(predicate, a, b, "i1")

    def select(self, cond: Reg, a: Operand, b: Operand) -> Reg:
        x, y = _same_type(a, b)
        return self.emit(x.elem, x.width, f"select {cond}, {x}, {y}")

    def convert(self, opcode: str, a: Reg, elem: str) -> Reg:
        return self.emit(elem, a.width, f"{opcode} {a} to {vector_type(elem, a.width)}")

    def intrinsic(self, name: str, *operands: Operand) -> Reg:
        """Calls the overloaded intrinsic `llvm.NAME`; its result has the type of the first
        operand."""
        args = _same_type(*operands)
        suffix = mangled(args[0])
        if name == "ldexp":
            suffix += "." + mangled(args[-1])
        return self.call(f"llvm.{name}.{suffix}", args[0].elem, args[0].width, *args)

    def call(self, name: str, result: str, width: int, *args: Reg) -> Reg:
        """Calls an external function, which is declared on first use."""
        out = vector_type(result, width)
        types = ", ".join(a.type for a in args)
        self.module.add(name, lambda: f"declare {out} @{name}({types}) nounwind")
        return self.emit(result, width, f"call {out} @{name}({', '.join(map(str, args))})")

    def fma(self, a: Operand, b: Operand, c: Operand) -> Reg:
        """Returns `a * b + c`, rounded once.

        f32 without an FMA instruction is computed in f64 and so rounded twice. The result differs
        only if the f64 sum is halfway between two f32.
        """
        args = _same_type(a, b, c)
        if self.module.profile.fma or args[0].elem != "float":
            return self.intrinsic("fma", *args)
        x, y, z = (self.convert("fpext", r, "double") for r in args)
        return self.convert("fptrunc", self.op("fadd", self.op("fmul", x, y), z), "float")

    # ---- lanes ---------------------------------------------------------------------------------

    def splat(self, scalar: Reg, width: int) -> Reg:
        """Returns `scalar` in each of `width` lanes."""
        if width == 1 or scalar.width == width:
            return scalar
        return self._splat(scalar, width)

    @remembered
    def _splat(self, scalar: Reg, width: int) -> Reg:
        if not scalar.text.startswith("%"):
            return Reg(scalar.elem, width, f"splat ({scalar})")
        vector = self.emit(
            scalar.elem,
            width,
            f"insertelement {vector_type(scalar.elem, width)} poison, {scalar}, i64 0",
        )
        return self.shuffle(vector, None, (0,) * width)

    def any_lane(self, mask: Reg) -> Reg:
        """Returns an i1 that is true if a condition holds in at least one lane."""
        if mask.width == 1:
            return mask
        return self.call(f"llvm.vector.reduce.or.v{mask.width}i1", "i1", 1, mask)

    @remembered
    def extract(self, vector: Reg, lane: int) -> Reg:
        if vector.width == 1:
            return vector
        return self.emit(vector.elem, 1, f"extractelement {vector}, i64 {lane}")

    def load(self, elem: str, width: int, pointer: Reg, align: int) -> Reg:
        """Loads `width` adjacent elements; `align` is in bytes."""
        kind = vector_type(elem, width)
        return self.emit(elem, width, f"load {kind}, {pointer}, align {align}")

    def gather(self, scalars: Sequence[Reg], width: int) -> Reg:
        """Returns the vector of `scalars`; further lanes up to `width` are zero.

        These further lanes must not be undefined, because lanes may become arguments of functions
        and conditions of branches.
        """
        elem = scalars[0].elem
        if width == 1:
            return scalars[0]
        short = len(scalars) < width
        vector = Reg(elem, width, "zeroinitializer" if short else "poison")
        for lane, scalar in enumerate(scalars):
            vector = self.emit(elem, width, f"insertelement {vector}, {scalar}, i64 {lane}")
        return vector

    def shuffle(self, a: Reg, b: Reg | None, lanes: Sequence[int]) -> Reg:
        """Returns a vector of selected lanes: n is a lane of `a` followed by `b`, and -1 is
        undefined."""
        second = Reg(a.elem, a.width, "poison") if b is None else b
        if len(lanes) == 1:
            return self.extract(a if lanes[0] < a.width else second, lanes[0] % a.width)
        mask = ", ".join("i32 poison" if n < 0 else f"i32 {n}" for n in lanes)
        text = f"shufflevector {a}, {second}, <{len(lanes)} x i32> <{mask}>"
        return self.emit(a.elem, len(lanes), text)

    # ---- memory --------------------------------------------------------------------------------

    @remembered
    def offset(self, pointer: Reg, count: Reg, elem: str) -> Reg:
        """Returns the address `count` elements of type `elem` after `pointer`."""
        if count.text == "0":
            return pointer
        return self.emit("ptr", 1, f"getelementptr {elem}, {pointer}, {count}")

    def stack(self, size: int) -> Reg:
        """Returns the address of `size` bytes on the stack; all calls share the same bytes."""
        self._stack = max(self._stack, size)
        return Reg("ptr", 1, "%stack")

    def text(self) -> str:
        """Returns the text of all instructions."""
        allocation = [f"  %stack = alloca [{self._stack} x i8], align 64"] if self._stack else []
        return "\n".join((*allocation, *self.lines))

    # ---- control flow ----------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """Returns a label that is not in use; it begins with `stem`."""
        self._count += 1
        return f"{stem}{self._count}"

    def place(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def jump(self, label: str) -> None:
        self.void(f"br label %{label}")

    def branch(self, cond: Reg, yes: str, no: str) -> None:
        self.void(f"br {cond}, label %{yes}, label %{no}")

    @contextmanager
    def when(self, cond: Reg | None, stem: str) -> Iterator[None]:
        """Runs the code inside only if `cond` holds (None: always).

        Code after it cannot use the values that are computed inside.
        """
        if cond is None:
            yield
            return
        start, end = self.fresh(stem), self.fresh("after")
        self.branch(cond, start, end)
        self.place(start)
        with self.scope():
            yield
        self.jump(end)
        self.place(end)

    @contextmanager
    def repeat(self, times: Reg) -> Iterator[Reg]:
        """Emits a loop of `times` (at least one) iterations around the code inside; yields the
        counter."""
        name, entry_label = self.fresh("repeat"), self.label
        self.jump(name)
        self.place(name)
        counter, following = Reg("i64", 1, f"%{name}.n"), Reg("i64", 1, f"%{name}.next")
        line = len(self.lines)
        with self.scope():
            yield counter
        phi = (
            f"  {counter.text} = phi i64 [ 0, %{entry_label} ], [ {following.text}, %{self.label} ]"
        )
        self.lines.insert(line, phi)
        self.void(f"{following.text} = add nuw nsw {counter}, 1")
        goes_on = self.compare("icmp ult", following, times)
        self.void(f"br {goes_on}, label %{name}, label %{name}.done, !llvm.loop !0")
        self.place(f"{name}.done")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Forgets, when it ends, the values that were remembered inside."""
        before = len(self._known)
        try:
            yield
        finally:
            while len(self._known) > before:
                self._known.popitem()

    def keep_place(self) -> ReservedLine:
        """Reserves the current place for code that is emitted later."""
        self.lines.append("")
        return ReservedLine(self.lines, len(self.lines) - 1, dict(self._known))

    @contextmanager
    def at_place(self, place: ReservedLine) -> Iterator[None]:
        """Emits the code inside to `place`; the code can use only values that are remembered
        there."""
        current = self.lines, self._known
        self.lines, self._known = [], place.values
        yield
        (self.lines, self._known), new_lines = current, self.lines
        place.lines[place.line] = "\n".join(filter(None, (place.lines[place.line], *new_lines)))

    def remember(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Returns the value of `key`; calls `make` if no dominating place has remembered it."""
        if key not in self._known:
            self._known[key] = make()
        value: _T = self._known[key]
        return value


def in_pairs(items: Sequence[_T], combine: Callable[[_T, _T], _T]) -> _T:
    """Returns the combination of all items, combined pairwise with their neighbours."""
    level = list(items)
    while len(level) > 1:
        pairs = [combine(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + (level[-1:] if len(level) % 2 else [])
    return level[0]


def mangled(value: Reg) -> str:
    """Returns the type of a value as names of intrinsics spell it."""
    short = {"float": "f32", "double": "f64"}.get(value.elem, value.elem)
    return short if value.width == 1 else f"v{value.width}{short}"
