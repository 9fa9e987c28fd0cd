"""Runs the Gluon that tcc prints, in NumPy; asynchronous work happens as late as allowed.

Other parts may run at synchronising statements, so the text's functions become generators. A copy
fills its buffer with NaN when it starts, and a seeded scheduler decides when the data arrives. A
matmul reads its buffers when the program waits for it. Errors are: to use unfinished results, to
refill a buffer that is being read, to write a buffer that a copy still reads, and a deadlock.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from tcc.backends.artifact.gpu_binaries import TensorMap
from tcc.ir.graph import carrier
from tcc.ir.types import DTYPES

Condition = Callable[[], bool]
Part = Generator[Condition, None, None]
ORDERS = ("late", "early", "random", "uneven")


class GluonError(Exception):
    """The program does something wrong or undefined, or does not end."""


# ---- values -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    name: str
    carrier: Any

    def round(self, values: np.ndarray) -> np.ndarray:
        if self.name == "bf16":
            return np.asarray(carrier(values, DTYPES["bf16"]))
        return values.astype(self.carrier)


F32, BF16, F16 = Type("f32", np.float32), Type("bf16", np.float32), Type("f16", np.float16)
TYPES = {
    "float32": F32, "bfloat16": BF16, "float16": F16, "int32": Type("i32", np.int32),
    "int64": Type("i64", np.int64), "uint32": Type("u32", np.uint32), "int1": Type("i1", np.bool_),
}  # fmt: skip


def plain(value: Any) -> Any:
    """Returns a NumPy value; raises GluonError for a pending matmul."""
    if isinstance(value, Accumulator):
        if value.pending:
            raise GluonError("a product is used before it is waited for")
        return value.sum
    return value.data if isinstance(value, Tensor) else value


def typed(data: np.ndarray) -> Tensor:
    dtype = next(t for t in TYPES.values() if t.carrier == data.dtype.type and t is not BF16)
    return Tensor(np.asarray(data), dtype)


class Tensor:
    """A block of values in registers."""

    __array_ufunc__ = None  # NumPy's operators leave the work to this class.

    def __init__(self, data: np.ndarray, dtype: Type) -> None:
        self.data, self.dtype = data, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def to(self, dtype: Type, bitcast: bool = False) -> Tensor:
        if bitcast:
            return Tensor(self.data.view(dtype.carrier), dtype)
        return Tensor(dtype.round(self.data), dtype)

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        return Tensor(np.broadcast_to(self.data, shape), self.dtype)

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self.data[at], self.dtype)

    def _with(self, other: Any, operation: Callable[[Any, Any], Any], reflected: bool) -> Tensor:
        b = plain(other)
        if isinstance(b, int | float) and not isinstance(b, bool):
            b = self.data.dtype.type(b)
        return typed(operation(b, self.data) if reflected else operation(self.data, b))


class Accumulator:
    """Sums of matmuls, some of which may be pending."""

    def __init__(self, value: np.ndarray) -> None:
        self.sum, self.pending = value, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(Tensor(plain(self), F32), name)


def _operators() -> None:
    names = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "lt": np.less, "gt": np.greater,
        "le": np.less_equal, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "lshift": np.left_shift, "rshift": np.right_shift, "truediv": np.divide,
        "floordiv": np.floor_divide, "mod": np.remainder,
    }  # fmt: skip
    for kind in (Tensor, Accumulator):
        for name, single in (("neg", np.negative), ("invert", np.invert)):
            setattr(kind, f"__{name}__", lambda self, f=single: typed(f(plain(self))))
    for name, ufunc in names.items():
        for turned in (False, True):

            def method(self: Any, other: Any, f: Any = ufunc, t: bool = turned) -> Tensor:
                tensor = Tensor(plain(self), F32) if isinstance(self, Accumulator) else self
                return tensor._with(other, f, t)

            for kind in (Tensor, Accumulator):
                setattr(kind, f"__{'r' if turned else ''}{name}__", method)


_operators()


@dataclass
class Pointer:
    """Addresses of elements of a global array."""

    array: np.ndarray
    dtype: Type
    at: Any = 0

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.array, self.dtype, self.at + plain(other))


# ---- shared memory ------------------------------------------------------------------------------


class Shared:
    """A buffer in shared memory; its pieces along the first axis are separate buffers."""

    def __init__(self, dtype: Type, shape: Sequence[int]) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self.data = np.full(self.shape, np.nan, np.float32)
        self.readers = self.writers = self.leaving = 0
        self.dirty = False
        self._parts = [Shared(dtype, shape[1:]) for _ in range(shape[0])] if len(shape) > 2 else []

    def index(self, n: int) -> Shared:
        return self._parts[n]

    def permute(self, order: Sequence[int]) -> View:
        return View(self, lambda data: data.transpose(order))

    def reshape(self, shape: Sequence[int]) -> View:
        return View(self, lambda data: data.reshape(shape))

    def store(self, value: Any) -> Part:
        return View(self, lambda data: data).store(value)


@dataclass
class View:
    """A view of a buffer."""

    of: Shared
    see: Callable[[np.ndarray], np.ndarray]

    @property
    def values(self) -> np.ndarray:
        return self.see(self.of.data)

    def permute(self, order: Sequence[int]) -> View:
        return View(self.of, lambda data: self.see(data).transpose(order))

    def store(self, value: Any) -> Part:
        if self.of.leaving:
            raise GluonError("a buffer is written that a copy still reads")
        self.values[...] = plain(value)
        self.of.dirty = True
        yield always


def always() -> bool:
    return True


@dataclass
class Barrier:
    """An mbarrier; a phase ends when all arrivals and all bytes are there."""

    count: int = 0
    left: int = 0
    bytes: int = 0
    phase: int = 0

    def change(self, arrivals: int, moved: int) -> None:
        if not self.count:
            raise GluonError("a barrier was not initialised")
        self.left -= arrivals
        self.bytes += moved
        if self.left < 0:
            raise GluonError("more arrive at a barrier than it counts")
        if not self.left and not self.bytes:
            self.phase ^= 1
            self.left = self.count


@dataclass
class Barriers:
    all: list[Barrier]

    def index(self, n: int) -> Barrier:
        return self.all[n]


@dataclass
class Map:
    """A tensor map on a global array."""

    array: np.ndarray
    facts: TensorMap
    layout: str = "shared"

    def places(self, at: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the flat positions of a box, and a mask of the positions inside the tensor."""
        facts, offset, inside = self.facts, np.int64(0), np.True_
        for axis, (size, stride, box) in enumerate(
            zip(facts.sizes, facts.strides, facts.box, strict=True)
        ):
            shape = [1] * len(facts.box)
            shape[axis] = box
            line = (np.arange(box, dtype=np.int64) + int(at[axis])).reshape(shape)
            offset = offset + line * stride
            inside = inside & (line >= 0) & (line < size)
        return offset, inside


# ---- a program ----------------------------------------------------------------------------------


@dataclass
class Program:
    """One program: its parts, pending work, and the order of execution."""

    number: int
    programs: int
    order: str
    rng: random.Random
    copies: list[Callable[[], None]] = field(default_factory=list)
    products: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    stores: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    dirty: list[Shared] = field(default_factory=list)
    part: int = 0
    favourite: int = 0  # In uneven orders, this part runs most often.
    parts: list[tuple[Part, Condition]] = field(default_factory=list)

    def run(self, kernel: Part) -> None:
        self.parts = [(kernel, always)]
        while any(part is not None for part, _ in self.parts):
            self._step()
        if self.copies:
            raise GluonError("a copy is under way when the program ends")

    def _step(self) -> None:
        ready = [n for n, (part, can) in enumerate(self.parts) if part is not None and can()]
        choices: list[int] = list(ready)
        if self.copies and (self.order == "early" or not ready):
            choices = [-1]
        elif self.copies and self.order in ("random", "uneven"):
            choices.append(-1)
        if not choices:
            raise GluonError("all parts wait")
        index = self.rng.choice(choices)
        if self.order == "uneven" and self.favourite in ready and self.rng.random() < 0.9:
            index = self.favourite
        if index < 0:
            self.copies.pop(self.rng.randrange(len(self.copies)))()
            return
        self.part = index
        part = self.parts[index][0]
        try:
            self.parts[index] = (part, next(part))
        except StopIteration:
            self.parts[index] = (None, always)  # type: ignore[assignment]
            if self.products.get(index):
                raise GluonError("a part ends with products under way") from None
            if self.stores.get(index):
                raise GluonError("a part ends with stores under way") from None


class Language:
    """The names that a Gluon text may use, for one program."""

    def __init__(self, program: Program) -> None:
        self.p = program
        self.constexpr = lambda value: value
        for name, value in TYPES.items():
            setattr(self, name, value)

    def names(self) -> dict[str, Any]:
        barrier = SimpleNamespace(
            MBarrierLayout=lambda: "barriers", init=self.init, wait=self.wait,
            expect=self.expect, arrive=self.arrive,
        )  # fmt: skip
        tma = SimpleNamespace(
            async_load=self.async_load, async_store=self.async_store, store_wait=self.store_wait
        )
        every_nan = SimpleNamespace(PropagateNan=SimpleNamespace(ALL=True))
        triton = SimpleNamespace(language=every_nan)
        return {
            "tl": self, "gluon": SimpleNamespace(jit=lambda f: f), "mbarrier": barrier, "tma": tma,
            "warpgroup_mma": self.warpgroup_mma, "warpgroup_mma_wait": self.warpgroup_mma_wait,
            "fence_async_shared": self.fence, "triton": triton,
        }  # fmt: skip

    # parts and barriers

    def warp_specialize(self, parts: Any, warps: Any, registers: Any) -> Part:
        first = len(self.p.parts)
        self.p.parts += [(function(*arguments), always) for function, arguments in parts]
        yield lambda: all(part is None for part, _ in self.p.parts[first:])

    def init(self, barrier: Barrier, count: int) -> Part:
        barrier.count = barrier.left = count
        yield always

    def wait(self, barrier: Barrier, phase: int) -> Part:
        yield lambda: barrier.phase != phase

    def expect(self, barrier: Barrier, size: int) -> Part:
        barrier.change(1, size)
        yield always

    def arrive(self, barrier: Barrier, count: int = 1, pred: bool = True) -> Part:
        if pred:
            barrier.change(count, 0)
        yield always

    # copies

    def async_load(self, map_: Map, at: Sequence[int], barrier: Barrier, target: Any) -> Part:
        buffer: Shared = target.of if isinstance(target, View) else target
        if buffer.readers or buffer.writers:
            raise GluonError("a buffer is filled again while it is in use")
        buffer.data[...] = np.nan
        buffer.writers += 1
        offset, inside = map_.places(at)

        def arrive() -> None:
            buffer.writers -= 1
            values = np.where(inside, map_.array.flat[np.where(inside, offset, 0)], 0)
            buffer.data[...] = values.reshape(buffer.data.shape)
            width = DTYPES[map_.facts.dtype].bytes
            barrier.change(0, -values.size * width)

        self.p.copies.append(arrive)
        yield always

    def fence(self) -> Part:
        for buffer in self.p.dirty:
            buffer.dirty = False
        yield always

    def async_store(self, map_: Map, at: Sequence[int], source: Shared) -> Part:
        if source.dirty:
            raise GluonError("a copy reads what no fence has brought to it")
        offset, inside = map_.places(at)
        source.leaving += 1

        def leave() -> None:
            source.leaving -= 1
            map_.array.flat[offset[inside]] = source.data[inside]

        self.p.stores.setdefault(self.p.part, []).append(leave)
        yield always

    def store_wait(self, left: int) -> Part:
        queue = self.p.stores.setdefault(self.p.part, [])
        while len(queue) > left:
            queue.pop(0)()
        yield always

    # products

    def warpgroup_mma(self, a: Any, b: Any, acc: Any, is_async: bool = False) -> Accumulator:
        sums = acc if isinstance(acc, Accumulator) else Accumulator(plain(acc).copy())
        operands = [s if isinstance(s, View) else View(s, lambda data: data) for s in (a, b)
                 if isinstance(s, Shared | View)]  # fmt: skip
        copy = None if len(operands) == 2 else plain(a).copy()
        for side in operands:
            if side.of.writers:
                raise GluonError("a product reads what is not there yet")
            side.of.readers += 1
        sums.pending += 1

        def end() -> None:
            lhs = operands[0].values if copy is None else copy
            more = lhs.astype(np.float64) @ operands[-1].values.astype(np.float64)
            sums.sum = (sums.sum + more).astype(np.float32)
            sums.pending -= 1
            for side in operands:
                side.of.readers -= 1

        self.p.products.setdefault(self.p.part, []).append(end)
        if not is_async:
            self.warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
        return sums

    def warpgroup_mma_wait(self, num_outstanding: int, deps: Any) -> Any:
        queue = self.p.products.setdefault(self.p.part, [])
        while len(queue) > num_outstanding:
            queue.pop(0)()
        return deps[0] if len(deps) == 1 else deps

    # values

    def allocate_shared_memory(self, dtype: Type, shape: Sequence[int], layout: str) -> Any:
        if layout == "barriers":
            return Barriers([Barrier() for _ in range(shape[0])])
        buffer = Shared(dtype, shape)
        self.p.dirty.append(buffer)
        return buffer

    def NVMMADistributedLayout(self, **facts: Any) -> str:
        return "products"

    def DotOperandLayout(self, side: int, of: str, elements: int) -> str:
        return "operand"

    def convert_layout(self, x: Any, layout: str) -> Any:
        return x

    def static_range(self, n: int) -> range:
        return range(n)

    def program_id(self, axis: int) -> int:
        return self.p.number

    def num_programs(self, axis: int) -> int:
        return self.p.programs

    def to_tensor(self, x: int) -> int:
        return x

    def SliceLayout(self, axis: int, of: str) -> str:
        return of

    def arange(self, start: int, stop: int, layout: str) -> Tensor:
        return typed(np.arange(start, stop, dtype=np.int32))

    def full(self, shape: Sequence[int], value: Any, dtype: Type, layout: str = "") -> Tensor:
        return Tensor(np.full(shape, plain(value), dtype.carrier), dtype)

    def zeros(self, shape: Sequence[int], dtype: Type, layout: str = "") -> Tensor:
        return self.full(shape, 0, dtype)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, bool | np.bool_):
            return a if condition else b
        values = np.where(plain(condition), plain(a), plain(b))
        dtype = next((x.dtype for x in (a, b) if isinstance(x, Tensor)), None)
        return Tensor(values.astype(dtype.carrier), dtype) if dtype else typed(values)

    def load(self, pointer: Pointer, mask: Any = None, other: Any = 0) -> Tensor:
        at = np.asarray(pointer.at)
        inside = np.broadcast_to(True if mask is None else plain(mask), at.shape)
        wrong = inside & ((at < 0) | (at >= pointer.array.size))
        if wrong.any():
            raise GluonError("a load outside of its array")
        values = np.where(inside, pointer.array.flat[np.where(inside, at, 0)], other)
        return Tensor(values.astype(pointer.dtype.carrier), pointer.dtype)

    def store(self, pointer: Pointer, value: Any, mask: Any = None) -> Part:
        values = np.broadcast_to(plain(value), np.shape(pointer.at))
        inside = np.broadcast_to(True if mask is None else plain(mask), values.shape)
        pointer.array.flat[np.broadcast_to(pointer.at, values.shape)[inside]] = values[inside]
        yield always

    def maximum(self, a: Any, b: Any, propagate_nan: Any = None) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return typed(np.maximum(plain(a), plain(b), dtype=np.float32))

    def minimum(self, a: Any, b: Any, propagate_nan: Any = None) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return typed(np.minimum(plain(a), plain(b), dtype=np.float32))

    def cast(self, x: Any, dtype: Type, bitcast: bool = False) -> Tensor:
        value = x if isinstance(x, Tensor | Accumulator) else typed(np.asarray(x))
        return value.to(dtype, bitcast)

    def fma(self, a: Any, b: Any, c: Any) -> Tensor:
        parts = [np.asarray(plain(x), np.float64) for x in (a, b, c)]
        return typed((parts[0] * parts[1] + parts[2]).astype(np.float32))

    def exp2(self, x: Any) -> Tensor:
        return typed(np.exp2(plain(x)))

    def abs(self, x: Any) -> Tensor:
        return typed(np.abs(plain(x)))

    def div_rn(self, a: Any, b: Any) -> Tensor:
        return typed(np.float32(1) * plain(a) / plain(b))

    def sum(self, x: Any, axis: int, keep_dims: bool = False) -> Tensor:
        return typed(plain(x).sum(axis, keepdims=keep_dims, dtype=np.float32))

    def reduce(self, x: Any, axis: int, combine: Any, keep_dims: bool = False) -> Tensor:
        lanes = np.moveaxis(plain(x), axis, 0)
        result = typed(lanes[0])
        for lane in lanes[1:]:
            result = combine(result, typed(lane))
        return typed(np.expand_dims(plain(result), axis)) if keep_dims else result

    def reshape(self, x: Any, shape: Sequence[int]) -> Tensor:
        return typed(plain(x).reshape(shape))


class _Points(ast.NodeTransformer):
    """A transformer of calls that are statements: another part may run there."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Call):
            node.value = ast.YieldFrom(node.value)
        return node


def _compiled(text: str) -> Any:
    tree = ast.parse(text)
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.Assign)]
    return compile(ast.fix_missing_locations(_Points().visit(tree)), "gluon", "exec")


def run(
    text: str,
    name: str,
    arrays: Sequence[tuple[str, np.ndarray]],
    maps: Sequence[TensorMap],
    *,
    programs: int,
    seed: int = 0,
    order: str = "late",
) -> None:
    """Launches the kernel on `programs` programs; raises GluonError.

    `arrays` are pairs of a dtype's name and values; the kernel writes its results there.
    """
    code = _compiled(text)
    for number in _shuffled(programs, seed):
        program = Program(number, programs, order, random.Random(seed * 1009 + number))
        program.favourite = 1 + (seed + number) % 3
        names = Language(program).names()
        exec(code, names)
        kinds = {t.name: t for t in TYPES.values()}
        pointers = [Pointer(array, kinds[kind]) for kind, array in arrays]
        tensor_maps = [Map(arrays[m.buffer][1], m) for m in maps]
        with np.errstate(all="ignore"):
            program.run(names[name](*pointers, *tensor_maps))


def _shuffled(count: int, seed: int) -> Iterator[int]:
    numbers = list(range(count))
    random.Random(seed).shuffle(numbers)
    yield from numbers
