"""Checks of sizes: a model's assumptions about the sizes of its inputs."""

from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.index import Extremum, Index, as_int, const, of_atom
from tcc.ir.index.ones import if_one
from tcc.ir.op import Arrays, Infer, OpSpec, OutArrays, OutTypes, Reference, Trait, Types
from tcc.ir.types import DTYPES, I32, I64
from tcc.ops.operands import sizes
from tcc.ops.shapes import required


@frozen
class RequireAttrs:
    """The size `left` must equal the size `right`; with `or_one` it may also be 1.

    `reason` says why, as a clause that can follow "because".
    """

    left: Index
    right: Index
    reason: str
    or_one: bool = False

    @property
    def due(self) -> Index:
        """The value that `left` must have."""
        return if_one(self.left, const(1), self.right) if self.or_one else self.right

    @property
    def text(self) -> str:
        """The requirement as text.

        Where a size must equal the maximum of itself and a bound, the text says that it is at least
        the bound.
        """
        lhs, rhs = self.left, self.right
        for (atom, *_), _ in lhs.terms:
            if isinstance(atom, Extremum) and lhs is of_atom(atom) and rhs in (atom.a, atom.b):
                bound = atom.b if rhs is atom.a else atom.a
                word = "least" if atom.which == "max" else "most"
                return f"{rhs.key} must be at {word} {bound.key}"
        return f"{lhs.key} must be {'1 or ' if self.or_one else ''}{rhs.key}"


def _require_types(types: Types, attrs: RequireAttrs) -> OutTypes:
    if as_int(attrs.left - attrs.due) not in (0, None):
        raise ValueError(f"{attrs.left.key} is not {attrs.right.key} ({attrs.reason})")
    return ()


def _require(arrays: Arrays, attrs: RequireAttrs) -> OutArrays:
    if attrs.left is not attrs.due:
        raise UserError(
            f"a size is {attrs.left.key} where the model needs {attrs.right.key}",
            why=attrs.reason,
            hint="give inputs of other sizes",
        )
    return ()


@frozen
class BroadcastSizeAttrs:
    """The new size symbol `symbol` stands for the size to which `left` and `right` broadcast."""

    symbol: Index
    left: Index
    right: Index

    @property
    def value(self) -> Index:
        """The broadcast size: `right` if `left` is 1, else `left`.

        `require` nodes check that the sizes broadcast.
        """
        return if_one(self.left, self.right, self.left)


@frozen
class NameSizeAttrs:
    """The new size symbol `symbol` stands for `value`, a formula too long to be repeated."""

    symbol: Index
    value: Index


@frozen
class CheckIndicesAttrs:
    """The elements at the positions `number`, `number + period`, ... must be valid indices.

    They are indices into an axis of extent `size`; negative indices are valid if `signed`. `reason`
    is the text of the error.
    """

    size: Index
    period: int = 1
    number: int = 0
    reason: str = "an index is outside of its axis"
    signed: bool = True

    @property
    def least(self) -> Index:
        """The smallest valid index into the axis."""
        return const(0) - self.size if self.signed else const(0)


def _indices_types(types: Types, attrs: CheckIndicesAttrs) -> OutTypes:
    if types[0] is None or types[0].dtype not in (I32, I64):
        raise ValueError(f"indices are of type i32 or i64, not {types[0]}")
    return ()


def _check_indices(arrays: Arrays, attrs: CheckIndicesAttrs) -> OutArrays:
    lowest, size = sizes((attrs.least, attrs.size))
    indices = required(arrays, 0).reshape(-1)[attrs.number :: attrs.period]
    if indices.size and (indices.min() < lowest or indices.max() >= size):
        raise UserError(attrs.reason, why=f"{indices.min()} to {indices.max()} of {size}")
    return ()


def _nothing(_operands: object, _attrs: object) -> tuple[()]:
    return ()


def _row(
    name: str, attrs: type, doc: str, infer: Infer = _nothing, reference: Reference = _nothing
) -> OpSpec:
    """Returns the op-table row of a node without operands and outputs."""
    integers = tuple(d for d in DTYPES.values() if d.is_integer)
    return OpSpec(name, attrs, (0, 0), infer, reference, integers, doc, traits=Trait.OPAQUE)


OPS = (
    OpSpec(
        "check_indices", CheckIndicesAttrs, (1, 1), _indices_types, _check_indices,
        (I32, I64),
        "Stops the run unless indices lie in their axis; a node without outputs.",
        traits=Trait.OPAQUE,
    ),
    _row(
        "broadcast_size", BroadcastSizeAttrs,
        "Names the size to which two sizes broadcast; a node without operands and outputs.",
    ),
    _row(
        "name_size", NameSizeAttrs,
        "Names a size from which other sizes are computed; a node without operands and outputs.",
    ),
    _row(
        "require", RequireAttrs,
        "Stops the run unless sizes are equal or a size is 1; a node without operands and outputs.",
        _require_types, _require,
    ),
)  # fmt: skip
