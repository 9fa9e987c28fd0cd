"""Shape and type rules that several op families share.

Every rule raises ValueError with one sentence that names the dims or types at fault. Dims are
compared as interned `Index` objects, so two different formulas never count as equal.

Importers catch an `UnequalDimsError`. They add a node that checks in every run that the two dims
are equal, and replace one dim by the other in the operands. If the operands broadcast, they expand
both dims to the larger one instead.
"""

from collections.abc import Mapping, Sequence

from tcc.frozen import frozen
from tcc.ir.index import Index, const
from tcc.ir.op import T, Types
from tcc.ir.types import DTYPES, DType, DTypeKind, TensorType
from tcc.zipped import zip_equal

Shape = tuple[Index, ...]
Point = tuple[Index, ...]  # an index for each axis of a shape
Axes = int | Mapping[int, Sequence[int]] | None

ALL = tuple(d for d in DTYPES.values() if not d.is_handle)
# The element types of ops that do not compute with values.
MOVED = (*ALL, DTYPES["string"])
# The element types of ops that compute; narrow types are only moved and converted.
COMMON = tuple(d for d in ALL if not d.is_narrow)
STORED = (*COMMON, DTYPES["string"])
FLOATS = tuple(d for d in COMMON if d.is_float)
INTEGERS = tuple(d for d in COMMON if d.is_integer)
SIGNED = tuple(d for d in COMMON if d.kind is DTypeKind.INT) + FLOATS
NUMERIC = INTEGERS + FLOATS
BOOLS = (DTYPES["bool"],)


def replaced(items: Sequence[T], axis: int, *new: T) -> tuple[T, ...]:
    """Returns `items`, which has an item per axis, with the items `new` in place of item `axis`."""
    return (*items[:axis], *new, *items[axis + 1 :])


class UnequalDimsError(ValueError):
    """Two dims must be equal, but whether they are is only known at run time.

    `what` says in a few words what must be equal. If the operands broadcast, so that a dim of 1 is
    allowed too, `axis` is the axis of the two dims: a negative number counted from the last axis of
    each operand, or a map from operand numbers to negative numbers. Otherwise `axis` is None. With
    `narrow`, only the first dim may be 1.
    """

    def __init__(
        self, a: Index, b: Index, what: str, axis: Axes = None, narrow: bool = False
    ) -> None:
        super().__init__(f"{what}: {a.key} and {b.key} differ")
        self.dims, self.what, self.axis, self.narrow = (a, b), what, axis, narrow


@frozen
class AxisAttrs:
    """The attributes of ops that work along a single axis, which is not negative."""

    axis: int


def required(operands: Sequence[T | None], number: int) -> T:
    """Returns operand `number` (its type or array); raises ValueError if it is absent."""
    operand = optional(operands, number)
    if operand is None:
        raise ValueError(f"operand {number} is missing")
    return operand


def optional(operands: Sequence[T | None], number: int) -> T | None:
    """Returns operand `number` (its type or array), or None if it is absent or beyond the last."""
    return operands[number] if number < len(operands) else None


def present(operands: Sequence[T | None], count: int | None = None) -> tuple[T, ...]:
    """Returns the first `count` operands, by default all; raises ValueError if one is absent."""
    return tuple(required(operands, n) for n in range(len(operands) if count is None else count))


def check_dtype(dtype: DType, allowed: Sequence[DType], what: str = "the operand") -> None:
    """Raises ValueError unless `dtype` is one of `allowed`."""
    if dtype not in allowed:
        raise ValueError(f"{what} may not be {dtype.name}")


def same_dtype(*types: TensorType | None) -> DType:
    """Returns the element type of all present operands; raises ValueError if they differ."""
    dtypes = [t.dtype for t in types if t is not None]
    if not dtypes:
        raise ValueError("there is no operand")
    for dtype in dtypes:
        if dtype is not dtypes[0]:
            raise ValueError(f"element types {dtypes[0].name} and {dtype.name} differ")
    return dtypes[0]


def broadcast_dims(a: Index, b: Index, axis: Axes) -> Index:
    """Returns the dim to which `a` and `b` broadcast.

    A dim of 1 broadcasts to any other. `axis` is passed to `UnequalDimsError`.
    """
    if a is not b and const(1) not in (a, b):
        raise UnequalDimsError(a, b, "dims do not broadcast", axis)
    return a if b is const(1) else b


def broadcast_shapes(*shapes: Shape, tail: int = 0) -> Shape:
    """Returns the shape to which all `shapes` broadcast, aligned at the last axis (NumPy's rule).

    The operands may have `tail` more axes behind the axes of `shapes`. Error messages number axes
    from the last axis of the operands.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result = [const(1)] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for axis, dim in enumerate(shape):
            at = offset + axis
            result[at] = broadcast_dims(result[at], dim, at - rank - tail)
    return tuple(result)


def broadcast_types(types: Types) -> Shape:
    """Returns the shape to which the operands that are present broadcast."""
    return broadcast_shapes(*(t.shape for t in types if t is not None))


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """True if `shape` broadcasts to `target` without enlarging it."""
    try:
        return broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def check_axis(axis: int, rank: int) -> None:
    """Raises ValueError unless `0 <= axis < rank`."""
    if not 0 <= axis < rank:
        raise ValueError(f"axis {axis} is not an axis of a tensor of rank {rank}")


def check_axes(axes: Sequence[int], rank: int) -> None:
    """Raises ValueError unless the axes are distinct and lie in [0, rank)."""
    for axis in axes:
        check_axis(axis, rank)
    if len(dict.fromkeys(axes)) != len(axes):
        raise ValueError(f"axes {tuple(axes)} repeat")


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Returns `shape` without the reduced `axes`, or with size 1 for them if `keepdims`."""
    check_axes(axes, len(shape))
    if keepdims:
        return tuple(const(1) if n in axes else dim for n, dim in enumerate(shape))
    return tuple(dim for n, dim in enumerate(shape) if n not in axes)


def check_rank(type: TensorType, what: str = "the operand") -> None:
    """Raises ValueError unless `type` has at least two dims."""
    if type.rank < 2:
        raise ValueError(f"{what} has rank {type.rank}, at least 2 is needed")


def agree(a: Index, b: Index, what: str) -> Index:
    """Returns the dim that `a` and `b` have in common.

    Raises `UnequalDimsError` with the text `what` if they differ.
    """
    if a is not b:
        raise UnequalDimsError(a, b, what)
    return a


def agree_shapes(a: Shape, b: Shape, what: str) -> Shape:
    """Returns the shape that `a` and `b` have in common; `agree` compares each dim.

    Raises ValueError if the ranks differ.
    """
    if len(a) != len(b):
        raise ValueError(f"{what}: ranks {len(a)} and {len(b)} differ")
    return tuple(agree(x, y, what) for x, y in zip_equal(a, b))


def first_shape(types: Types) -> Shape:
    """Returns the shape of the first operand; every other present operand must broadcast to it."""
    shape = required(types, 0).shape
    for number, other in enumerate(types[1:], 1):
        if other is not None:
            check_broadcast(other.shape, shape, number)
    return shape


def check_broadcast(shape: Shape, target: Shape, operand: int) -> None:
    """Raises ValueError unless `shape` broadcasts to `target` without enlarging it.

    `operand` is the position of the operand with this shape, for messages.
    """
    what = f"a shape ({_dims(shape)}) does not broadcast to ({_dims(target)})"
    if len(shape) > len(target):
        raise ValueError(what)
    for back in range(1, len(shape) + 1):
        size, due = shape[-back], target[-back]
        if size is not const(1) and size is not due:
            raise UnequalDimsError(size, due, what, {operand: (-back,)}, narrow=True)


def _dims(shape: Shape) -> str:
    return ", ".join(dim.key for dim in shape)
