"""Random graphs, valid by construction: ops of the table applied to one another's results.

`generate(seed)` depends on its seed alone. A step takes an op and one of its samples. The sample
gives the attributes, and the operands that no earlier value fits. The step keeps the node if the
op's inference and reference accept it. So every op, dtype, edge value of an attribute, zero size
and symbolic size occurs, in chains that share values, with several outputs, and inside If, Loop and
Scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from tcc.errors import TccError
from tcc.ir.graph import Graph, GraphBuilder, Value, bind_attrs, carrier
from tcc.ir.graph.evaluate import Sizes, bind_sizes, evaluate_graph
from tcc.ir.index import Index, as_int, const, substitute, symbol, var_of
from tcc.ir.op import OpSpec, Trait
from tcc.ir.types import BF16, BOOL, F32, I64, DType, TensorType, dtype_of
from tcc.ops import OPS, collective

from tests.ops.samples import Sample, samples_of

from .movements import TYPES, movement, pick

Array = np.ndarray[Any, np.dtype[Any]]

# Ops that only name or check sizes, that hold a whole expression, or that need ranks.
_NOT_DRAWN = (
    "if", "loop", "scan", "require", "broadcast_size", "name_size", "check_indices", "bind_size",
    "expression", "guarded",
    *(op.name for op in collective.OPS),
)  # fmt: skip
# Ops with a data-dependent size, which a field of the attributes names.
_DATA_SIZES = ("non_zero", "compress", "unique", "non_max_suppression")
# Only samples have valid values of these ops' later operands: indices, counts and shapes.
_PLACES = frozenset(
    {"gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "tensor_scatter",
     "max_unpool", "roi_align", "max_roi_pool", "rotary_embedding",
     "non_max_suppression", "range", "compress", "bit_shift"}
)  # fmt: skip
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 33, 64, 65, 100, 131)
_LARGEST = 1e4  # Larger results are rarely kept, because chains of them only overflow.
_MOST_ELEMENTS = 40_000
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, 1.0, -1.0)


@dataclass(frozen=True, slots=True)
class Generated:
    """A graph and arrays for its inputs, by name; `special`: some are NaN or infinite."""

    graph: Graph
    inputs: dict[str, Array]
    special: bool


@dataclass(frozen=True, slots=True)
class Known:
    """A value with its array for the generated inputs; `made` is its value in the graph, if any.

    A value outside the graph becomes an input, or a constant if `fixed`.
    """

    array: Array
    type: TensorType
    made: Value | None = None
    fixed: bool = False


@cache
def _samples(name: str) -> tuple[Sample, ...]:
    return tuple(samples_of(OPS[name]))


@cache
def _drawn() -> tuple[OpSpec, ...]:
    return tuple(op for op in OPS.values() if op.name not in _NOT_DRAWN and _samples(op.name))


@cache
def _shape_keeping() -> tuple[OpSpec, ...]:
    """Returns the elementwise ops, which work on any shape."""
    return tuple(op for op in _drawn() if Trait.ELEMENTWISE in op.traits)


def generate(seed: int, most: int | None = None, builder: GraphBuilder | None = None) -> Generated:
    """Returns the graph of `seed`; `most` keeps only its first steps."""
    maker = Maker(seed, builder or GraphBuilder(f"fuzz{seed}"))
    steps = int(maker.rng.integers(1, 20))
    for _ in range(min(steps, steps if most is None else most)):
        maker.step()
    return Generated(maker.graph(maker.outputs()), maker.feeds, maker.special)


class Maker:
    """Generates one graph. `pool` holds the values so far, including those around a body."""

    def __init__(self, seed: int, builder: GraphBuilder, outer: Maker | None = None) -> None:
        self.seed, self.builder, self.outer = seed, builder, outer
        self.rng: np.random.Generator = outer.rng if outer else np.random.default_rng(seed)
        self.sizes: Sizes = dict(outer.sizes) if outer else {}
        self.pool: list[Known] = list(outer.pool) if outer else []
        self.own: list[Known] = []
        self.feeds: dict[str, Array] = {}
        self.special: bool = outer.special if outer else bool(self.rng.random() < 0.1)
        self.symbols: list[Index] = list(outer.symbols) if outer else []
        self.count = 0
        self.first = len(builder._nodes)
        if outer is None:
            for n in range(int(self.rng.choice([0, 0, 1, 2]))):
                self._open_size(n)

    def _open_size(self, number: int) -> None:
        low = int(self.rng.integers(0, 2))
        dim = symbol(f"s{self.seed}.{number}", low, 10**9 - 1)
        var = var_of(dim)
        assert var is not None
        sizes = (low, *_SIZES)
        self.sizes[var] = const(int(self.rng.choice(sizes)))
        self.symbols.append(dim)

    # ---- one step -------------------------------------------------------------------------------

    def step(self) -> None:
        """Appends a node or a construct; gives up after eight failed attempts."""
        for _ in range(8):
            kind = self.rng.random()
            if kind < 0.05 and self.outer is None:
                is_added = self._control()
            elif kind < 0.33:
                is_added = self._chain()
            elif kind < 0.53:
                is_added = self._movement()
            elif kind < 0.60:
                is_added = self._product()
            elif kind < 0.67:
                is_added = self._window()
            elif kind < 0.69:
                is_added = self._attention()
            else:
                is_added = self._row(pick(self.rng, _drawn()))
            if is_added:
                return

    def _row(self, op: OpSpec) -> bool:
        """Appends an op on one of its samples, with fitting earlier values as operands."""
        if self.special and op.name == "dft":
            return False  # Some algorithms skip zeros of their tables, others make NaN.
        sample = pick(self.rng, _samples(op.name))
        if self.special and op.name == "conv_transpose":
            _, channels, *kernel = np.shape(sample.inputs[1])
            if channels == 1 or np.any(np.mod(kernel, sample.attrs.strides)):
                return False  # The same is true of zeros that fill up short filters.
        other = self._other_type(op, sample)
        operands: list[Known | None] = []
        for number, array in enumerate(sample.inputs):
            if array is None:
                operands.append(None)
                continue
            kind = other if other and array.dtype == other.carrier else None
            # Some algorithms multiply weights by zeros around an image, so infinity becomes NaN.
            finite = op.name == "conv_transpose" and number == 1
            value = self.fresh(array, kind, finite=finite)
            places = finite or (number and (op.name in _PLACES or array.dtype.kind in "iu"))
            operands.append(value if places else self._replaced(value, op))
            if other and other.is_narrow:
                other = None  # The operands beside it, scales and zero points, are mostly wide.
        return self._apply(op, operands, sample.attrs)

    def _other_type(self, op: OpSpec, sample: Sample) -> DType | None:
        """Returns a dtype that NumPy lacks, the op accepts and the sample carries, or None."""
        dtypes = {a.dtype for a in sample.inputs if a is not None}
        able = [d for d in op.dtypes if (d is BF16 or d.is_narrow) and d.carrier in dtypes]
        return pick(self.rng, able) if able and self.rng.random() < 0.25 else None

    def _replaced(self, value: Known, op: OpSpec) -> Known:
        """Returns an earlier value of the same type, or of the same dtype for elementwise ops."""
        loose = Trait.ELEMENTWISE in op.traits
        fits = [
            k
            for k in self.pool
            if k.type.dtype is value.type.dtype
            and (k.array.shape == value.array.shape or (loose and self.rng.random() < 0.3))
        ]
        return pick(self.rng, fits) if fits and self.rng.random() < 0.8 else value

    def _chain(self) -> bool:
        """Appends an elementwise op on any value, with a partner that broadcasts to it."""
        x = self._value()
        rows = [op for op in _shape_keeping() if x.type.dtype in op.dtypes]
        if not rows:
            return False
        op = pick(self.rng, rows)
        sample = pick(self.rng, _samples(op.name))
        operands: list[Known | None] = []
        for array in sample.inputs:
            if array is None:
                operands.append(None)
            elif op.name == "where" and not operands:
                operands.append(self.fresh(self.rng.random(x.array.shape) < 0.5, like=x))
            elif not operands or (op.name == "where" and len(operands) == 1):
                operands.append(x)
            else:
                operands.append(self._partner(x))
        return self._apply(op, operands, sample.attrs)

    def _partner(self, x: Known) -> Known:
        """Returns a value that broadcasts with `x`: an earlier or a new value."""
        fits = [k for k in self.pool if k.type.dtype is x.type.dtype and _broadcasts(k, x)]
        if fits and self.rng.random() < 0.6:
            return pick(self.rng, fits)
        first = int(self.rng.integers(0, x.type.rank + 1))
        dims = [
            const(1) if self.rng.random() < 0.2 else dim for dim in x.type.shape[first:]
        ]  # a trailing part of the dims; some axes become 1
        return self.fresh_of(TensorType(x.type.dtype, tuple(dims)))

    def _movement(self) -> bool:
        """Appends an op that moves data of any value, with attributes made for its shape."""
        x = self._value()
        application = movement(self.rng, x, self)
        if application is None:
            return False
        name, operands, attrs = application
        return self._apply(OPS[name], operands, attrs)

    def _product(self) -> bool:
        """Appends a matmul of an earlier value with a weight or another value."""
        floats = [k for k in self.pool if k.type.dtype is F32 and k.type.rank >= 2]
        x = pick(self.rng, floats) if floats else self.fresh_of(self._type(F32, 2))
        if len(floats) > 1 and self.rng.random() < 0.3:
            other = pick(self.rng, floats)
            if self._apply(OPS["matmul"], [x, other], OPS["matmul"].attrs()):
                return True
        depth = as_int(x.type.shape[-1])
        if depth is None or not 0 < depth <= 256:
            return False
        width = int(self.rng.choice(_SIZES))
        weight = self.fresh(
            (self.rng.standard_normal((depth, width)) / np.sqrt(depth)).astype(np.float32)
        )
        fixed = replace(weight, fixed=bool(self.rng.random() < 0.7))
        return self._apply(OPS["matmul"], [x, fixed], OPS["matmul"].attrs())

    def _window(self) -> bool:
        """Appends a convolution or pooling of an image, which is an earlier or a new value."""
        images = [k for k in self.pool if k.type.dtype is F32 and k.type.rank in (3, 4)]
        fresh = not images or self.rng.random() < 0.3
        x = self.fresh_of(self._type(F32, 4)) if fresh else pick(self.rng, images)
        channels, space = as_int(x.type.shape[1]), x.type.rank - 2
        if not channels or min(x.array.shape) < 1:
            return False
        kernel = [int(self.rng.choice([1, 1, 2, 3, 3, 3, 4])) for _ in range(space)]
        strides = tuple(int(n) for n in self.rng.choice([1, 1, 1, 2, 3], space))
        dilations = tuple(int(n) for n in self.rng.choice([1, 1, 1, 2], space))
        before = tuple(const(int(self.rng.integers(0, k))) for k in kernel)
        after = tuple(const(int(self.rng.integers(0, k))) for k in kernel)
        if self.rng.random() < 0.3:
            op = OPS[pick(self.rng, ("max_pool", "average_pool"))]
            pads = {"before": before, "after": after, "dilations": dilations}
            sample = pick(self.rng, _samples(op.name)).attrs
            return self._apply(
                op, [x], replace(sample, kernel=tuple(kernel), strides=strides, **pads)
            )
        group = pick(self.rng, [n for n in range(1, channels + 1) if channels % n == 0])
        group = 1 if self.rng.random() < 0.5 else group
        filters = group * int(self.rng.integers(1, 9))
        depth = channels // group
        weight = self.rng.standard_normal((filters, depth, *kernel)) / np.sqrt(depth * 3)
        w = replace(self.fresh(weight.astype(np.float32)), fixed=bool(self.rng.random() < 0.8))
        bias = [self.fresh_of(TensorType(F32, (const(filters),)))] * int(self.rng.integers(0, 2))
        attrs = OPS["conv"].attrs(strides, before, after, dilations, group)
        return self._apply(OPS["conv"], [x, w, *bias], attrs)

    def _attention(self) -> bool:
        """Appends softmax(q k) v, with up to two elementwise ops before the softmax."""
        floats = [k for k in self.pool if k.type.dtype is F32 and k.type.rank >= 2]
        q = pick(self.rng, floats) if floats else self.fresh_of(self._type(F32, 3))
        keys = pick(self.rng, (*self.symbols, const(int(self.rng.choice(_SIZES)))))
        depth, batch = q.type.shape[-1], q.type.shape[:-2]
        k = self.fresh_of(TensorType(F32, (*batch, depth, keys)))
        v = self.fresh_of(TensorType(F32, (*batch, keys, depth)))
        if not self._apply(OPS["matmul"], [q, k], OPS["matmul"].attrs()):
            return False
        for _ in range(int(self.rng.integers(0, 3))):
            self._scaled(self.own[-1])
        scores = self.own[-1]
        if not self._apply(OPS["softmax"], [scores], OPS["softmax"].attrs(scores.type.rank - 1)):
            return True
        return self._apply(OPS["matmul"], [self.own[-1], v], OPS["matmul"].attrs()) or True

    def _scaled(self, x: Known) -> bool:
        row = OPS[pick(self.rng, ("mul", "add", "sub", "max"))]
        return self._apply(row, [x, self._partner(x)], row.attrs())

    # ---- values ---------------------------------------------------------------------------------

    def _value(self) -> Known:
        if self.pool and self.rng.random() < 0.85:
            recent = self.pool[-6:] if self.rng.random() < 0.6 else self.pool
            return pick(self.rng, recent)
        dtype = pick(self.rng, (F32, F32, F32, F32, *TYPES))
        return self.fresh_of(self._type(dtype, int(self.rng.integers(0, 5))))

    def _type(self, dtype: DType, rank: int) -> TensorType:
        dims: list[Index] = []
        for _ in range(rank):
            draw = self.rng.random()
            if self.symbols and draw < 0.35:
                dims.append(pick(self.rng, self.symbols))
            elif draw > 0.985:
                dims.append(const(0))
            else:
                dims.append(const(int(self.rng.choice(_SIZES[: 17 - 2 * rank]))))
        while _elements(TensorType(dtype, tuple(dims)), self.sizes) > _MOST_ELEMENTS:
            dims[next(n for n, d in enumerate(dims) if as_int(d) is None)] = const(1)
        return TensorType(dtype, tuple(dims))

    def shape(self, type: TensorType) -> tuple[int, ...]:
        """Returns the sizes of a type's dims for the generated inputs."""
        return tuple(_known(substitute(dim, self.sizes)) for dim in type.shape)

    def fresh(
        self,
        array: Array,
        dtype: DType | None = None,
        like: Known | None = None,
        *,
        finite: bool = False,
    ) -> Known:
        """Returns a new input or constant with the dims of `like`, which has its shape."""
        kind = dtype or dtype_of(array)
        shape = like.type.shape if like else tuple(map(const, array.shape))
        fixed = like is None and bool(self.rng.random() < 0.3)
        data = carrier(array if finite else self._spoiled(array), kind)
        return Known(data, TensorType(kind, shape), fixed=fixed or self.outer is not None)

    def fresh_of(self, type: TensorType) -> Known:
        shape, rng = self.shape(type), self.rng
        if type.dtype is BOOL:
            array = rng.random(shape) < 0.5
        elif type.dtype.is_integer:
            array = rng.integers(0 if "u" in type.dtype.name else -9, 10, shape)
        elif rng.random() < 0.3:
            array = rng.integers(-4, 5, shape).astype(np.float64)
        else:
            array = rng.standard_normal(shape)
        data = carrier(self._spoiled(np.asarray(array).astype(type.dtype.carrier)), type.dtype)
        fixed = self.outer is not None or bool(rng.random() < 0.2)
        return Known(data, type, fixed=fixed and type.static_shape is not None)

    def _spoiled(self, array: Array) -> Array:
        """Returns `array` with a few special values if the graph has special values."""
        if not self.special or array.dtype.kind != "f" or not array.size:
            return array
        with np.errstate(over="ignore"):
            values = np.array(_SPECIAL).astype(array.dtype)
        data = array.copy().reshape(-1)
        at = self.rng.integers(0, data.size, 1 + data.size // 16)
        data[at] = self.rng.choice(values, at.size)
        return data.reshape(array.shape)

    def _make(self, entry: Known) -> Known:
        """Adds `entry` to the graph."""
        if entry.made is not None:
            return entry
        name = f"x{self.seed}.{self.count}"
        self.count += 1
        if entry.fixed and entry.type.static_shape is not None:
            value = self.builder.constant(entry.array, name, entry.type.dtype)
        elif self.outer is not None:
            return self._of_outside(entry)
        else:
            value = self.builder.input(name, entry.type)
            self.feeds[value.name] = entry.array
        added_entry = replace(entry, made=value)
        self.pool.append(added_entry)
        return added_entry

    def _of_outside(self, entry: Known) -> Known:
        """Returns a value from the surrounding graph, because a body has no inputs of its own."""
        assert self.outer is not None
        added_entry = self.outer._make(entry)
        self.pool.append(added_entry)
        return added_entry

    # ---- nodes ----------------------------------------------------------------------------------

    def _apply(self, op: OpSpec, operands: Sequence[Known | None], attrs: Any) -> bool:
        """Appends the node if inference and reference accept it and results are sound."""
        attrs = self._open_results(op, attrs)
        types = [None if k is None else k.type for k in operands]
        try:
            results = op.infer(types, attrs)
            arrays = self._evaluate(op, operands, attrs, results)
        except (ValueError, IndexError, ZeroDivisionError, OverflowError, TccError):
            return False
        if arrays is None or not self._sound(arrays, operands):
            return False
        if not all(_taken(op, t) for t in (*types, *results) if t is not None):
            return False
        entries = [None if k is None else self._make(k) for k in operands]
        values = [None if k is None else k.made for k in entries]
        outputs = self.builder.add(
            op, values, attrs, loc=op.name, names=[f"v{self.seed}.{op.name}"] * len(results)
        )
        self._keep(outputs, arrays)
        return True

    def _open_results(self, op: OpSpec, attrs: Any) -> Any:
        """Returns the attributes with a new symbol for a data-dependent size."""
        if op.name not in _DATA_SIZES:
            return attrs
        self.count += 1
        return replace(attrs, size=symbol(f"d{self.seed}.{self.count}", 0, 10**9 - 1))

    def _evaluate(
        self,
        op: OpSpec,
        operands: Sequence[Known | None],
        attrs: Any,
        types: Sequence[TensorType],
    ) -> tuple[Array, ...] | None:
        """Returns the node's results and records their sizes; None if a type does not fit."""
        arrays = [None if k is None else k.array for k in operands]
        bound = bind_attrs(attrs, self.sizes)
        if any(_elements(t, self.sizes) > _MOST_ELEMENTS for t in types):
            return None
        with np.errstate(all="ignore"):
            results = tuple(np.asarray(a) for a in op.reference(arrays, bound))
        results = tuple(carrier(a, t.dtype) for a, t in zip(results, types, strict=True))
        sizes = dict(self.sizes)
        values = [Value("r", t) for t in types]
        if bind_sizes(values, results, sizes):
            return None
        self.sizes.update(sizes)
        return results

    def _sound(self, arrays: Sequence[Array], operands: Sequence[Known | None]) -> bool:
        """Returns true if the results are small, and finite unless the graph is special."""
        if any(a.size > _MOST_ELEMENTS for a in arrays):
            return False
        if self.special:
            return True
        floats = [a for a in arrays if a.dtype.kind == "f" and a.size]
        if any(not np.all(np.isfinite(a)) for a in floats):
            return False
        tall = any(np.max(np.abs(a)) > _LARGEST for a in floats)
        return not tall or bool(self.rng.random() < 0.02)

    def _keep(self, outputs: Sequence[Value], arrays: Sequence[Array]) -> None:
        for value, array in zip(outputs, arrays, strict=True):
            entry = Known(array, value.type, value)
            self.pool.append(entry)
            self.own.append(entry)

    def graph(self, outputs: Sequence[Value]) -> Graph:
        """Returns this maker's part of its builder, which may hold other graphs too."""
        all_of_graph = self.builder.finish(outputs)
        inputs = tuple(v for v in all_of_graph.inputs if v.name in self.feeds)
        return replace(all_of_graph, inputs=inputs, nodes=all_of_graph.nodes[self.first :])

    def outputs(self) -> list[Value]:
        """Returns the values that no node reads, and a few that some node reads."""
        nodes = self.builder._nodes[self.first :]
        read = {v for node in nodes for v in node.inputs if v is not None}
        values = [k.made for k in self.own if k.made is not None]
        ends = [v for v in values if v not in read or self.rng.random() < 0.15]
        return ends or [k.made for k in self.pool[-1:] if k.made is not None]

    # ---- control flow ---------------------------------------------------------------------------

    def _control(self) -> bool:
        kind = pick(self.rng, ("if", "loop", "scan"))
        x = self._value()
        if x.type.dtype is BOOL:
            return False
        x = self._make(x)
        build = {"if": self._if, "loop": self._loop, "scan": self._scan}[kind]
        node = build(x)
        if node is None:
            return False
        op, operands, attrs = node
        values = [None if k is None else self._make(k).made for k in operands]
        names = [f"v{self.seed}.{kind}"] * len(attrs.types if hasattr(attrs, "types") else (0,))
        outputs = self.builder.add(op, values, attrs, loc=kind, names=names)
        results = evaluate_graph(self.graph(outputs), self.feeds)
        self._keep(outputs, [results[v.name] for v in outputs])
        return True

    def _body(self, name: str) -> Maker:
        return Maker(self.seed, GraphBuilder(name, parent=self.builder), self)

    def _grown(self, body: Maker, x: Known) -> Known:
        """Returns a value of `x`'s type: `x` after a few elementwise ops."""
        now = x
        for _ in range(int(self.rng.integers(1, 4))):
            rows = [
                op
                for op in _shape_keeping()
                if now.type.dtype in op.dtypes and op.arity[0] <= 2 and op.name != "where"
            ]
            op = pick(self.rng, rows)
            sample = pick(self.rng, _samples(op.name))
            operands = [now, *(body.fresh_of(now.type) for _ in sample.inputs[1:])]
            if body._apply(op, operands, sample.attrs):
                last = body.own[-1]
                if last.type == x.type:
                    now = last
        return now

    def _if(self, x: Known) -> Any:
        condition = self.fresh(np.asarray(self.rng.random() < 0.5))
        branch_graphs = []
        for name in ("then", "otherwise"):
            body = self._body(name)
            result = self._grown(body, x)
            assert result.made is not None
            branch_graphs.append(body.builder.finish([result.made]))
        op = OPS["if"]
        return op, [replace(condition, fixed=False)], op.attrs(*branch_graphs, (x.type,))

    def _loop(self, x: Known) -> Any:
        body = self._body("loop")
        trips = int(self.rng.integers(0, 4))
        body.builder.input("i", TensorType(I64, ()))
        go = body.builder.input("go", TensorType(BOOL, ()))
        carried = Known(x.array, x.type, body.builder.input("c", x.type))
        body.pool.append(carried)
        result = self._grown(body, carried)
        assert result.made is not None
        rows = bool(self.rng.random() < 0.5)
        outs = [go, result.made, *([result.made] if rows else [])]
        stacked = TensorType(x.type.dtype, (const(trips), *x.type.shape))
        op = OPS["loop"]
        types = (x.type, *([stacked] if rows else []))
        count = replace(self.fresh(np.asarray(trips, np.int64)), fixed=True)
        return op, [count, None, x], op.attrs(body.builder.finish(outs), types)

    def _scan(self, x: Known) -> Any:
        if not x.type.rank:
            return None
        body = self._body("scan")
        axis = 0  # The importer moves other axes to the front.
        if not x.array.shape[axis]:
            return None
        slices = TensorType(x.type.dtype, x.type.shape[1:])
        first = np.ascontiguousarray(x.array[0])
        part = Known(first, slices, body.builder.input("part", slices))
        body.pool.append(part)
        result = self._grown(body, part)
        assert result.made is not None
        back = bool(self.rng.random() < 0.3)
        op = OPS["scan"]
        attrs = op.attrs(body.builder.finish([result.made]), 1, (axis,), (back,), (axis,), (back,))
        return op, [x], attrs


# ---- helpers -------------------------------------------------------------------------------------


def _taken(op: OpSpec, type: TensorType) -> bool:
    """Returns true if a node may have an operand or result of this type; inference accepts more."""
    return type.dtype in (op.dtypes if type.dtype.is_narrow else TYPES)


def _known(dim: Index) -> int:
    size = as_int(dim)
    if size is None:
        raise ValueError(f"the size {dim.key} is not known")
    return size


def _elements(type: TensorType, sizes: Sizes) -> int:
    """Returns the number of elements of a type, or 0 if a result decides a size."""
    dims = [as_int(substitute(dim, sizes)) for dim in type.shape]
    return int(np.prod([d for d in dims if d is not None], dtype=object)) if None not in dims else 0


def _broadcasts(small: Known, large: Known) -> bool:
    """Returns true if each dim of `small`, from the back, is 1 or equals that of `large`."""
    if small.type.rank > large.type.rank:
        return False
    pairs = zip(reversed(small.type.shape), reversed(large.type.shape), strict=False)
    return all(a is b or as_int(a) == 1 for a, b in pairs)


def bodies_of(attrs: Any) -> Iterator[tuple[str, Graph]]:
    """Yields the graphs in a node's attributes, with their fields."""
    if is_dataclass(attrs):
        for item in fields(attrs):
            value = getattr(attrs, item.name)
            if isinstance(value, Graph):
                yield item.name, value
