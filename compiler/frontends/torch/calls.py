"""What a program of torch says, whichever way it came: calls by name, and what is known of each.

    Program   inputs, a block of calls, ranges of its symbols, names of its results
    Block     calls in order; what a branch or a loop holds is a block too
    Call      an operator's name (`aten.add.Tensor`), its arguments by the names of its schema
    Formula   a size that depends on symbols, as torch's expressions have it

Exported programs (`exported`) and archives (`archive`) are both read into this form;
nothing behind it knows torch.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tcc.ir.op import Array
from tcc.ir.types import DType
from tcc.record import entity, record


@record
class Formula:
    """A function of sizes; `head` is its name in torch's expressions.  A symbol has its name as
    the only argument of `Symbol`; a fraction is a `Rational` of two integers."""

    head: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        if self.head == "Symbol":
            return str(self.args[0])
        return f"{self.head}({', '.join(map(str, self.args))})"

    @property
    def is_symbol(self) -> bool:
        return self.head == "Symbol"


Size: TypeAlias = "int | Formula"


@record
class Ref:
    """A value, by its name."""

    name: str


@record
class ElementType:
    """An element type, by torch's name (`float32`)."""

    name: str


@record
class Opaque:
    """An argument that no converter looks into: a device, a layout, an object."""

    text: str

    def __repr__(self) -> str:
        return self.text


@record
class Ranks:
    """A group of ranks: what messages call it, and its `members` as a `RankGroup` of programs has
    them.  Without members it is all ranks, or they are not known."""

    name: str
    members: tuple[tuple[int, ...], ...] = ()


@record
class Tensor:
    """A tensor without contents; `strides` and `offset`, in elements, say where torch keeps it in
    its memory."""

    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] = ()
    offset: Size = 0


@record
class Number:
    """A number that follows from sizes; `kind` is `int`, `float` or `bool`."""

    kind: str
    value: Any


# A Tensor, a Number, None, or a tuple of these.
Known: TypeAlias = Any


@entity
class Call:
    """One call.  Arguments are refs, numbers, texts, blocks, or lists of these; those without a
    name are numbered.  `used` are the numbers of its results that something reads."""

    name: str
    target: str
    arguments: Mapping[str, Any]
    result: Known
    path: str = ""
    used: frozenset[int] = frozenset()

    @property
    def location(self) -> str:
        """Where the call is, for messages: its module, its name, its operator."""
        return f"{self.path + '/' if self.path else ''}{self.name} ({self.target})"


@entity
class Block:
    """Calls in order.  `inputs` are named, each with what is known of it; an input that is a
    number, text or None has that value.  `outputs` are refs, numbers or None."""

    inputs: tuple[tuple[str, Known], ...]
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]


@record
class Constant:
    """An input of the program that it owns: a parameter, buffer or constant of this name."""

    name: str


@record
class Fixed:
    """An input of the program that the export fixed to a number, a text, None, or a group of ranks,
    or groups along each dimension of a mesh."""

    value: Any


@entity
class Program:
    """A whole program.

    `owned` says which inputs of the block the caller does not give, by name.  The first outputs of
    the block are new values of `updates`, names of inputs of the block; the others have
    `output_names`.  `ranges` are the least and largest value of symbols, `symbol_names` what their
    author calls them, where known.  `guards` are conditions on sizes of its inputs, as torch writes
    them, under which the program is right.  `arguments` are the paths to its inputs in what the
    caller gives, without `Constant` ones: 0 and a position or 1 and a keyword, then keys.  `hints`
    are the values that formulas of sizes had when the program was made, by their texts, where
    known.  `contents` gives the elements of a constant.  `trusted` is a program that torch itself
    made in this process: its calls are sound, and a contradiction is a fault of the import.
    """

    block: Block
    owned: Mapping[str, Constant | Fixed]
    updates: tuple[str, ...]
    output_names: tuple[str, ...]
    ranges: Mapping[str, tuple[int | None, int | None]]
    symbol_names: Mapping[str, str]
    guards: tuple[str, ...]
    hints: Mapping[str, int]
    contents: Callable[[str], tuple[Array, DType]]
    trusted: bool
    arguments: tuple[tuple[Any, ...], ...] = ()
