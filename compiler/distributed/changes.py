"""Changes of sharding: the collectives that turn one sharding of a value into another.

    partial -> whole       all_reduce
    partial -> split       reduce_scatter
    split -> whole         all_gather
    split -> split         all_to_all; all_gather and a slice for other groups of the same axis
    whole -> split         a slice at the rank's own place
    whole -> partial(sum)  the value on the first rank, zeros on all others

Padded blocks cover the elements of a group and padding behind them.  A group gets zeros behind it
before its blocks are sliced or exchanged.  Padding is cut off when blocks come back.  If neighbour
ranks have copies of a block, blocks are slices of the whole value, and one of the gathered copies
stays.

Collectives have blocks along axis 0.  Around them, an axis of n * B elements becomes two axes, n
and B, and n moves to the front; it moves only where an axis before it has more than one element.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tcc.distributed.mesh import MeshAxis
from tcc.distributed.sharding import WHOLE, Partial, Sharding, Split, Whole, local_type, type_bytes
from tcc.errors import InternalError
from tcc.frozen import frozen
from tcc.ir.expr import ExprBuilder
from tcc.ir.expr.scalar import Scalar, apply, index_value, literal
from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import Index, Indices, as_int, const, symbol
from tcc.ir.types import BOOL, I64, U8, TensorType, element_count
from tcc.ops import OPS
from tcc.ops.shapes import Shape


@frozen
class Transfer:
    """The collective of a change of sharding: its kind, and the bytes that a rank sends.

    `kind` is empty where a rank needs nothing of other ranks.  A symbolic size counts as its
    typical value.
    """

    kind: str
    bytes: int


# The size symbol of a rank's number.
_RANK = "number of the rank"
_NO_TRANSFER = Transfer("", 0)


def transfer(type: TensorType, source: Sharding, result: Sharding, ranks: int) -> Transfer | None:
    """Returns the collective that changes a value of `type` from `source` to `result`.

    None for a change that does not exist: only a whole value becomes a part, of a sum.
    """
    size = type_bytes(type)
    share = size * (ranks - 1) // ranks
    match source, result:
        case (a, b) if a == b:
            return _NO_TRANSFER
        case Whole(), Split() | Partial("sum"):
            return _NO_TRANSFER
        case Partial(), Split(copies=1):
            return Transfer("reduce_scatter", share)
        case Partial(), Whole() | Split():
            return Transfer("all_reduce", 2 * share)
        case Split(axis, copies=1), Split(other, copies=1) if axis != other:
            return Transfer("all_to_all", share // ranks)
        case Split(), Whole() | Split():
            return Transfer("all_gather", share)
    return None


def rank_number(ranks: int) -> Index:
    """Returns the size symbol of a rank's number among `ranks` ranks."""
    return symbol(_RANK, 0, ranks - 1)


class RankNumber:
    """The number of a rank in a graph; its first call adds the nodes that bind it."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._b = builder
        self._number: Index | None = None

    def __call__(self, ranks: int) -> Index:
        """Returns the number of a rank among `ranks` ranks."""
        if self._number is None:
            self._number = rank_number(ranks)
            (rank,) = self._b.add(OPS["rank"], [])
            row = OPS["bind_size"]
            self._b.add(row, [rank], row.attrs(self._number, element=0, signed=True))
        return self._number


class Changer:
    """Adds changes of sharding along a mesh axis to a graph; `number` is the number of its
    ranks."""

    def __init__(
        self, builder: GraphBuilder, axis: MeshAxis, number: RankNumber | None = None
    ) -> None:
        self._b, self._axis = builder, axis
        self._number = number or RankNumber(builder)

    def change(self, value: Value, type: TensorType, source: Sharding, result: Sharding) -> Value:
        """Adds nodes that change `value`, a rank's array of a value of `type`, from the sharding
        `source` to `result`; returns the new array.

        Raises InternalError for a change that does not exist.
        """
        if source == result:
            return value
        shape = local_type(type, result, self._axis.ranks).shape
        match source, result:
            case Whole(), Split():
                return self._slice(value, result, shape)
            case Whole(), Partial("sum"):
                return self._addend(value)
            case Partial(reduction), Whole():
                return self._collective("all_reduce", value, reduction)
            case Partial(reduction), Split(copies=1):
                blocks = self._blocks_first(value, result)
                return self._shaped(self._collective("reduce_scatter", blocks, reduction), shape)
            case Split(), Whole():
                gathered = self._collective("all_gather", value)
                return self._blocks_back(gathered, value.shape, source, shape)
            case Split(axis, copies=1), Split(other, copies=1) if axis != other:
                exchanged = self._collective("all_to_all", self._blocks_first(value, result))
                block = list(value.shape)
                block[other] = shape[other]
                return self._blocks_back(exchanged, tuple(block), source, shape)
            case Partial() | Split(), Split():
                whole = self.change(value, type, source, WHOLE)
                return self.change(whole, type, WHOLE, result)
        raise InternalError(f"no collective changes {source} to {result}", where=value.name)

    def _slice(self, value: Value, split: Split, shape: Shape) -> Value:
        if split.groups == 1 and not split.block:
            return self._block(value, split.axis, split)
        parted = self._padded(value, split)
        return self._shaped(self._block(parted, 1, split), shape)

    def _block(self, value: Value, axis: int, split: Split) -> Value:
        """Returns the rank's block of `value` along an axis, which the blocks cover."""
        sizes, starts = [*value.shape], [const(0)] * value.rank
        sizes[axis] = sizes[axis] // split.parts(self._axis.ranks)
        starts[axis] = self.place() // split.copies * sizes[axis]
        return self._cut(value, starts, sizes)

    def _cut(self, value: Value, starts: Sequence[Index], sizes: Sequence[Index]) -> Value:
        attrs = {"starts": tuple(starts), "steps": (1,) * len(sizes), "sizes": tuple(sizes)}
        return self._add("slice", value, **attrs)

    def _padded(self, value: Value, split: Split) -> Value:
        """Returns a value as two axes: its groups, with all before them, and the elements of a
        group, with zeros behind them where the blocks have padding."""
        shape = value.shape
        head, groups, tail = _parted(shape, split)
        parted = self._shaped(value, (head * groups, tail))
        if not split.block:
            return parted
        inner = element_count(shape[split.axis + 1 :])
        covered = split.block * split.parts(self._axis.ranks) * inner
        none = const(0)
        attrs = {"before": (none, none), "after": (none, covered - tail), "mode": "constant"}
        return self._add("pad", parted, **attrs)

    def without_padding(self, value: Value, type: TensorType, split: Split) -> Value:
        """Returns a rank's array of a value of `type` with zeros as its padding."""

        def is_inside(at: Indices) -> Scalar:
            place = at[split.axis] % split.block + self.place() // split.copies * split.block
            return index_value(place, I64) < type.shape[split.axis] // split.groups

        return self._selected(value, is_inside)

    def _addend(self, value: Value) -> Value:
        """Returns `value` on the first rank of each group, zeros on the others."""
        is_first = apply("eq", index_value(self.place(), I64), literal(0, I64))
        return self._selected(value, lambda _: is_first)

    def _selected(self, value: Value, test: Callable[[Indices], Scalar]) -> Value:
        """Returns the elements of `value` at whose indices `test` holds, and zeros elsewhere."""
        e = ExprBuilder(value.type)
        at = e.point(value.type)
        part = apply("select", test(at), e.read(0, *at), literal(0, value.dtype))
        return self._add("expression", value, expr=e.finish(at, part))

    def combine(self, parts: Sequence[Value], monoid: str) -> Sequence[Value]:
        """Returns the combination of all ranks' `parts` by a monoid on tuples; `parts` are the
        components of a tuple for each element.

        Every rank gathers the tuples of all ranks, along a new first axis.
        """
        ranks = const(self._axis.ranks)
        stacked = [
            self._shaped(self._collective("all_gather", part), (ranks, *part.shape))
            for part in parts
        ]
        e = ExprBuilder(*(value.type for value in stacked))
        at, (rank,) = e.point(parts[0].type), e.iters(ranks)
        body = [e.read(number, rank, *at) for number in range(len(stacked))]
        first = e.stage(at, *body, over=(rank,), monoid=monoid)
        row = OPS["expression"]
        components = [replace(first, component=number) for number in range(len(body))]
        return self._b.add(row, stacked, row.attrs(e.done(*components)))

    def place(self) -> Index:
        """Returns the rank's place in its group: an index of a size symbol, which the first call
        binds."""
        return self._axis.place(self._number(self._axis.all_ranks))

    def _blocks_first(self, value: Value, split: Split) -> Value:
        """Returns `value` with the blocks of an axis one behind another along axis 0."""
        ranks, padded = const(self._axis.ranks), self._padded(value, split)
        groups, tail = padded.shape
        parted = self._shaped(padded, (groups, ranks, tail // ranks))
        return self._shaped(self._swapped(parted), (ranks * groups, tail // ranks))

    def _blocks_back(self, value: Value, block: Shape, split: Split, shape: Shape) -> Value:
        """Returns `value` of shape `shape` from blocks of shape `block`, which lie one behind
        another along axis 0 and belong into the axis of `split`."""
        head, groups, tail = _parted(block, split)
        groups, parts, none = head * groups, const(split.parts(self._axis.ranks)), const(0)
        if split.copies > 1:
            copies = self._shaped(value, (parts, const(split.copies), groups * tail))
            value = self._cut(copies, (none,) * 3, (parts, const(1), groups * tail))
        blocks = self._swapped(self._shaped(value, (parts, groups, tail)))
        if split.block:
            inner = element_count(shape[split.axis + 1 :])
            elements = shape[split.axis] // split.groups * inner
            blocks = self._shaped(blocks, (groups, parts * tail))
            blocks = self._cut(blocks, (none, none), (groups, elements))
        return self._shaped(blocks, shape)

    def _swapped(self, value: Value) -> Value:
        """Returns `value` with its first two axes exchanged."""
        first, second, last = value.shape
        if as_int(first) == 1 or as_int(second) == 1:
            return self._shaped(value, (second, first, last))
        return self._add("transpose", value, perm=(1, 0, 2))

    def _shaped(self, value: Value, shape: Shape) -> Value:
        return value if value.shape == shape else self._add("reshape", value, shape=shape)

    def _collective(self, kind: str, value: Value, reduction: str = "sum") -> Value:
        attrs = {
            "ranks": self._axis.ranks,
            "reduction": reduction,
            "members": self._axis.members,
        }
        if value.dtype is not BOOL:
            return self._add(kind, value, **attrs)
        numbers = self._add(kind, self._add("cast", value, to=U8), **attrs)
        return self._add("cast", numbers, to=BOOL)

    def _add(self, op: str, value: Value, **attrs: Any) -> Value:
        row = OPS[op]
        (result,) = self._b.add(row, [value], row.attrs(**attrs))
        return result


def _parted(shape: Shape, split: Split) -> Shape:
    """Returns `shape` as three axes: all before the axis of `split`, its groups, and a group with
    all behind."""
    head, tail = element_count(shape[: split.axis]), element_count(shape[split.axis :])
    return head, const(split.groups), tail // split.groups
