"""The values of a model during its import, and the addition of nodes to the graph.

    Operand         a value under construction: a graph value, a constant, or a tensor of sizes
    Scope           the graph, body or function that new nodes go to, and what is known of its sizes
    ImportSession   the state that the whole import shares

Constants and tensors of sizes become graph values only when a node reads them, so computations on
shapes leave no trace in the graph.  `Scope.emit` folds small constants and values computed from
shapes alone.
"""

from __future__ import annotations

import math
import re
from collections import ChainMap, Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from tcc.errors import UserError
from tcc.frontends.operand import LARGEST_SIZE, Operand, Operands
from tcc.frontends.place import PLACE
from tcc.frontends.shapes import check_types, is_small, propagate
from tcc.ir.graph import GraphBuilder, Value, carrier, map_sizes
from tcc.ir.index import Index, as_int, const, free_vars, symbol
from tcc.ir.index.names import facts_of, is_long
from tcc.ir.index.ones import one_apart
from tcc.ir.op import Array, Trait, result_types
from tcc.ir.types import DType, TensorType, dtype_of
from tcc.known import all_known
from tcc.ops import OPS
from tcc.ops.effort import is_laborious
from tcc.ops.shapes import UnequalDimsError
from tcc.schedule.nest import typical
from tcc.zipped import zip_equal

# The most elements of a result that the import folds. A pass folds larger results if it pays.
_FOLD_RESULT = 1024
_FOLD_OPERAND = 1 << 16
# At most this many checks that sizes are equal are added for one node.
_MOST_DEMANDS = 16


@dataclass(slots=True)
class ImportSession:
    """State that the scopes of one import share.

    `drawn` counts random nodes by name, because bodies and functions may be imported several times.
    """

    symbols: dict[str, int] = field(default_factory=dict)
    drawn: Counter[str] = field(default_factory=Counter)

    def fresh_symbol(
        self,
        hint: str,
        lo: int = 0,
        hi: int = LARGEST_SIZE,
        typical: int | None = None,
        divisor: int = 1,
    ) -> Index:
        """Returns a size symbol; its name derives from `hint` and is new in the model.

        The size is in [lo, hi] and a multiple of `divisor`; prices assume that it is `typical`.
        """
        name = first = _identifier(hint)
        while name in self.symbols:
            self.symbols[first] += 1
            name = f"{first}.{self.symbols[first]}"
        self.symbols[name] = 0
        return symbol(name, lo, hi, divisor, typical)


def _identifier(text: str) -> str:
    """Returns `text` as an identifier that parses again and cannot be an iterator's name."""
    name = re.sub(r"[^A-Za-z0-9_.]", "_", text)[:80]
    plain = re.match(r"[A-Za-z_]", name) and not re.fullmatch(r"[a-z][0-9]+", name)
    return name if plain else f"n_{name}"


@dataclass(slots=True, eq=False)
class Scope:
    """A graph under construction, and the known facts about its sizes.

    `parent` is the scope around a body. `enclosing` is the scope around a body or a function.
    `outside` has the names of the outer symbols that a body may use; None stands for all.

    `wide` maps a pair of sizes to the size to which they broadcast, and `short` a long formula to
    its symbol. `joins` maps a size to a set of sizes, each of which is 1 or equal to it. `bound`
    maps a pair (operand, lower bound) to the symbols of the operand's elements. Entries of `joins`
    and `bound` also hold in the bodies inside the scope.

    `repeats`: the graph is the body of a loop. `seed` is the seed of the graph's random nodes, or
    None before the first of them.
    """

    session: ImportSession
    builder: GraphBuilder
    parent: Scope | None = None
    path: str = ""
    enclosing: Scope | None = None
    outside: set[str] | None = None
    wide: dict[tuple[Index, Index], Index] = field(default_factory=dict)
    short: dict[Index, Index] = field(default_factory=dict)
    joins: ChainMap[Index, frozenset[Index]] = field(default_factory=ChainMap)
    bound: ChainMap[tuple[Operand, int], tuple[Index, ...]] = field(default_factory=ChainMap)
    repeats: bool = False
    seed: Operand | None = None

    def __post_init__(self) -> None:
        if self.parent:
            self.enclosing = self.parent
            self.joins = self.parent.joins.new_child()
            self.bound = self.parent.bound.new_child()

    def body(self, name: str, symbols: set[str] | None = None) -> Self:
        """Returns a scope for the body `name` of the node under import.

        The body sees the enclosing `symbols`; by default all that exist. Pass a set if symbols were
        created for the body's own inputs. `name` is "body" for a body that a loop repeats.
        """
        path = f"{PLACE.get()}/{name}"
        builder = GraphBuilder(path, parent=self.builder)
        symbols = set(self.session.symbols) if symbols is None else symbols
        scope = type(self)(self.session, builder, self, f"{path}/", outside=symbols)
        scope.repeats = name == "body"
        return scope

    def constant(
        self,
        array: Any,
        dtype: DType | None = None,
        name: str = "const",
        sources: tuple[str, ...] = (),
    ) -> Operand:
        data = np.asarray(array)
        type = TensorType(dtype or dtype_of(data), tuple(map(const, data.shape)))
        return Operand(type, self.builder, name, array=data, sources=sources)

    def sizes(
        self, values: Sequence[Index], dtype: DType, *, scalar: bool = False, name: str = "sizes"
    ) -> Operand:
        """Returns a vector (or scalar) of sizes; a plain constant if all are numbers."""
        elements = np.empty(len(values), object)
        elements[:] = values
        shaped = elements.reshape(()) if scalar else elements
        return self._sizes(shaped, dtype, name)

    def _sizes(self, elements: Array, dtype: DType, name: str) -> Operand:
        numbers = all_known(map(as_int, elements.reshape(-1)))
        if numbers is not None:
            array = np.array(numbers, np.int64).astype(dtype.carrier).reshape(elements.shape)
            return self.constant(array, dtype, name)
        type = TensorType(dtype, tuple(map(const, elements.shape)))
        return Operand(type, self.builder, name, sizes=elements)

    def wrap(self, value: Value) -> Operand:
        return Operand(value.type, self.builder, value.name, graph_value=value)

    def input(self, name: str, type: TensorType) -> Operand:
        """Adds an input to the graph."""
        return self.wrap(self.builder.input(name, type))

    def emit(
        self,
        op: str,
        operands: Operands,
        attrs: Any,
        *,
        names: Sequence[str] = (),
        demands: int = _MOST_DEMANDS,
    ) -> tuple[Operand, ...]:
        """Returns the results of `op`.

        They are folded, computed from sizes, or come from a new node of the graph. If the op needs
        equal sizes and they may differ, every run checks them; `demands` limits the number of
        checks. Absent trailing operands are dropped if the op takes fewer operands.
        """
        row = OPS[op]
        while len(operands) > row.arity[0] and operands[-1] is None:
            operands = operands[:-1]
        if Trait.OPAQUE not in row.traits and operands:
            present = [o for o in operands if o is not None]
            folded = None
            if all(o.array is not None for o in present):
                folded = self._fold(op, operands, attrs, names)
            elif all(o.array is not None or o.sizes is not None for o in present):
                folded = self._propagate(op, operands, attrs, names)
            if folded is not None:
                return folded
        values = [None if o is None else o.value for o in operands]
        # The op gets symbols in place of long formulas. If it refuses them, it gets the formulas,
        # from which it may prove that the sizes of parts add up to the size of the whole.
        hint = next(iter(names), op)
        short = map_sizes(attrs, lambda size: self._shortened(size, hint))
        try:
            outputs = self.builder.add_first(
                row, values, (short, attrs), loc=PLACE.get(), names=names
            )
        except UserError as error:
            agreed = self._resolved(operands, error.__cause__) if demands else None
            if agreed is None:
                raise
            return self.emit(op, agreed, attrs, names=names, demands=demands - 1)
        check_types(value.type for value in outputs)
        results = tuple(self._short_sizes(self.wrap(value)) for value in outputs)
        if op == "equal":
            results[0].equality = _compared(operands)
        return results

    def add(self, op: str, values: Sequence[Value], *attrs: Any) -> None:
        """Adds a node of `op`, an op without results; `attrs` are the fields of its attributes."""
        row = OPS[op]
        self.builder.add(row, values, row.attrs(*attrs), loc=PLACE.get())

    # ---- sizes that are equal, or broadcast

    def require(self, a: Index, b: Index, why: str, *, or_one: bool = False) -> None:
        """Adds a check to every run: sizes `a` and `b` are equal, or `a` is 1 if `or_one`."""
        self.add("require", (), a, b, why, or_one)

    def joined(self, a: Index, b: Index, what: str) -> Index | None:
        """Returns the size to which `a` and `b` broadcast, if one of them may be 1; every run
        checks that they do.

        Returns None if neither can be 1: then they must be equal. `what` is the check's reason.
        """
        if const(1) in (a, b):
            return b if a is const(1) else a
        if self._is_part(b, a):
            return a
        if self._is_part(a, b) or not one_apart(b, a):
            return b if self.fits(a, b, what) else None
        wide = a
        if one_apart(a, b):
            wide = self._size_of_both(a, b)
        return wide if self.fits(b, wide, what) else None

    def _size_of_both(self, a: Index, b: Index) -> Index:
        """Returns the symbol of the size to which `a` and `b` broadcast.

        The symbol is defined in the outermost scope that has both sizes, so results of bodies may
        have the symbol in their shapes.
        """
        home, inside = self._home(a, b)
        if (a, b) not in home.wide:
            wide = self.session.fresh_symbol(f"{a.key}_or_{b.key}")
            home._name("broadcast_size", inside, wide, a, b)
            home.joins[wide] = frozenset({wide}) | home._parts(a)
            home.wide[a, b] = home.wide[b, a] = wide
        return home.wide[a, b]

    def _home(self, *sizes: Index) -> tuple[Scope, list[set[str]]]:
        """Returns the outermost scope in which the sizes are defined, and the sets `outside`.

        The sets belong to the bodies between that scope and this one, this one included.
        """
        inside: list[set[str]] = []
        home = self
        while home.enclosing and (home.outside is None or are_among(sizes, home.outside)):
            inside += [home.outside] if home.outside is not None else []
            home = home.enclosing
        return home, inside

    def _name(self, op: str, inside: Iterable[set[str]], name: Index, *sizes: Index) -> None:
        """Adds the node `op`, which computes the symbol `name` from `sizes`.

        `inside` has the sets `outside` of bodies inside this scope. `name` is added to each set, so
        that the bodies may use it.
        """
        self.add(op, (), name, *sizes)
        for symbols in inside:
            symbols.update(var.name for var in free_vars(name))

    # ---- long formulas

    def _shortened(self, size: Index, hint: str) -> Index:
        """Returns `size`, or its symbol if it is a long formula."""
        if not is_long(size):
            return size
        home, inside = self._home(size)
        if size not in home.short:
            facts = facts_of(size, min(typical(size), LARGEST_SIZE))
            name = self.session.fresh_symbol(f"{hint}.size", *facts)
            home._name("name_size", inside, name, size)
            home.short[size] = name
        return home.short[size]

    def _short_sizes(self, x: Operand) -> Operand:
        """Returns `x` with symbols for sizes that are long formulas."""
        for size in x.shape:
            x = self.renamed(x, size, self._shortened(size, x.name))
        return x

    def fits(self, size: Index, due: Index, what: str) -> bool:
        """True if `size` broadcasts to `due`.

        If that is not proved, every run checks that `size` is 1 or `due`. The result is False if
        `size` cannot be 1 while `due` is not 1.
        """
        if self._is_part(size, due):
            return True
        if not one_apart(size, due):
            return False
        self.joins[due] = self._parts(due) | self._parts(size)
        self.require(size, due, what, or_one=True)
        return True

    def _parts(self, dim: Index) -> frozenset[Index]:
        return self.joins.get(dim, frozenset({dim}))

    def _is_part(self, size: Index, due: Index) -> bool:
        return self._parts(size) <= self._parts(due)

    def _resolved(
        self, operands: Operands, error: BaseException | None
    ) -> list[Operand | None] | None:
        """Returns the operands in a form that an op takes after it refused two unequal dims.

        `error` is the refusal. Both dims are expanded to the size to which they broadcast. If they
        cannot broadcast, one replaces the other, and every run checks that they are equal. Returns
        None for another error, or if no operand has one of the dims.
        """
        if not isinstance(error, UnequalDimsError) or not any(dim.terms for dim in error.dims):
            return None
        dims, what = error.dims, error.what
        if error.axis is None:
            return self._agreed(operands, error)
        if not error.narrow:
            wide = self.joined(*dims, what)
        else:
            wide = dims[1] if self.fits(*dims, what) else None
        if wide is None:
            return self._agreed(operands, error)
        resolved, axes = list(operands), error.axis
        if isinstance(axes, int):
            axes = dict.fromkeys(range(len(resolved)), (axes,))
        for n, axis in ((n, axis) for n, places in axes.items() for axis in places):
            x = resolved[n]
            if x and x.rank >= -axis and x.shape[axis] in dims:
                resolved[n] = self._stretched(x, axis, wide)
        return resolved

    def _stretched(self, x: Operand, axis: int, size: Index) -> Operand:
        """Expands `x` to `size` elements along an axis that has one element or `size` elements."""
        sizes = list(x.shape)
        if sizes[axis] is size:
            return x
        sizes[axis] = size
        return self.emit("expand", [x], OPS["expand"].attrs(tuple(sizes)), names=[x.name])[0]

    def _agreed(self, operands: Operands, error: UnequalDimsError) -> list[Operand | None] | None:
        """Returns the operands with one of the error's two dims replaced by the other.

        Every run checks that the dims are equal. Returns None if no operand has one of them.
        """
        operand_dims = {dim for o in operands if o is not None for dim in o.shape}
        pairs = [(a, b) for a, b in (error.dims, error.dims[::-1]) if a in operand_dims]
        if not pairs:
            return None
        # Keep a number if there is one, else the shorter expression.
        old, new = max(pairs, key=lambda pair: (bool(pair[0].terms), len(pair[0].key)))
        self.require(old, new, error.what)
        return [o and self.renamed(o, old, new) for o in operands]

    def renamed(self, x: Operand, old: Index, new: Index) -> Operand:
        """Returns `x` with `new` in place of the equal size `old`."""
        if old is new or old not in x.shape:
            return x
        sizes = tuple(new if dim is old else dim for dim in x.shape)
        attrs = OPS["slice"].attrs((const(0),) * x.rank, (1,) * x.rank, sizes)
        return self.emit("slice", [x], attrs, names=[x.name])[0]

    def _fold(
        self,
        op: str,
        operands: Operands,
        attrs: Any,
        names: Sequence[str],
    ) -> tuple[Operand, ...] | None:
        arrays = [None if o is None else o.array for o in operands]
        if any(a is not None and a.size > _FOLD_OPERAND for a in arrays):
            return None
        if op == "dequantize_linear" and arrays[0] is not None and arrays[0].ndim > 1:
            return None  # matmuls may read quantised weights as they are
        types = self._types(op, operands, attrs)
        shapes = [t.static_shape for t in types]
        if any(s is None or math.prod(s) > _FOLD_RESULT for s in shapes):
            return None
        if is_laborious(OPS[op], [None if o is None else o.type for o in operands], attrs):
            return None
        try:
            with np.errstate(all="ignore"):
                results = OPS[op].reference(arrays, attrs)
        except (ValueError, IndexError, MemoryError):  # a later step reports the error
            return None
        hints = [*names, *(op for _ in results[len(names) :])]
        tensors = [o for o in operands if o and o.rank and o.dtype.is_float]
        sources = tuple(name for o in tensors for name in o.sources or (o.name,))
        return tuple(
            self.constant(carrier(a, t.dtype), t.dtype, n, sources)
            for a, t, n in zip(results, types, hints, strict=False)
        )

    def _propagate(
        self,
        op: str,
        operands: Operands,
        attrs: Any,
        names: Sequence[str],
    ) -> tuple[Operand, ...] | None:
        elements_of_operands = [None if o is None else o.index_elements for o in operands]
        if any(o is not None and k is None for o, k in zip_equal(operands, elements_of_operands)):
            return None
        types = self._types(op, operands, attrs)
        if not all(is_small(t) for t in types):
            return None
        results = propagate(op, elements_of_operands, attrs, types)
        if results is None:
            return None
        hints = [*names, *(op for _ in results[len(names) :])]
        propagated = []
        for elements, type, hint in zip(results, types, hints, strict=False):
            short = np.empty(elements.size, object)
            short[:] = [self._shortened(e, hint) for e in elements.reshape(-1)]
            propagated.append(self._sizes(short.reshape(elements.shape), type.dtype, hint))
        return tuple(propagated)

    def _types(self, op: str, operands: Operands, attrs: Any) -> tuple[TensorType, ...]:
        types = [None if o is None else o.type for o in operands]
        types_of_results = result_types(OPS[op], types, attrs, PLACE.get())
        check_types(types_of_results)
        return types_of_results


def are_among(dims: Iterable[Index], symbols: Set[str]) -> bool:
    """True if all symbols of the dims are in `symbols`."""
    return all(var.name in symbols for dim in dims for var in free_vars(dim))


def _compared(operands: Operands) -> tuple[Index, Index] | None:
    """Returns the two sizes that a comparison of one-element operands compares, else None."""
    elements = [None if o is None else o.index_elements for o in operands]
    compared = [k.reshape(-1)[0] for k in elements if k is not None and k.size == 1]
    return (compared[0], compared[1]) if len(compared) == 2 else None
