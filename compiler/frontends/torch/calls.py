"""The form in which both importers of torch programs hand over a program: calls by name.

    TorchProgram   inputs, a block of calls, ranges of its symbols, names of its results
    CallBlock      calls in order; the body of a branch or a loop is a block too
    Call           an operator's name (`aten.add.Tensor`), its arguments by the names of its schema
    Formula        a size that depends on symbols, as torch's expressions have it

Exported programs (`exported`) and archives (`archive`) are read into this form.  The rest of the
importer needs no torch.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tcc.frozen import entity, frozen
from tcc.ir.op import Array
from tcc.ir.types import DType


@frozen
class Formula:
    """A function of sizes; `head` is its name in torch's expressions.

    A symbol is the head `Symbol` with its name as the only argument; a fraction is a `Rational` of
    two integers.
    """

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


@frozen
class Ref:
    """A reference to a value by name."""

    name: str


@frozen
class ElementType:
    """An element type, by torch's name (`float32`)."""

    name: str


@frozen
class Opaque:
    """An argument that no converter looks into: a device, a layout, an object."""

    text: str

    def __repr__(self) -> str:
        return self.text


@frozen
class Ranks:
    """A group of ranks: its name for messages, and its `members` in the form of a program's
    `RankGroup`. Without members the group has all ranks, or its ranks are unknown."""

    name: str
    members: tuple[tuple[int, ...], ...] = ()


@frozen
class Tensor:
    """A tensor without contents; `strides` and `offset`, in elements, give its place in torch's
    memory."""

    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] = ()
    offset: Size = 0


@frozen
class Number:
    """A number computed from sizes; `kind` is `int`, `float` or `bool`."""

    kind: str
    value: Any


# The description of a value: a Tensor, a Number, a Python number, None, or a tuple of descriptions.
Known: TypeAlias = Any


@entity
class Call:
    """A call of an operator.

    Arguments are refs, numbers, texts, blocks, or lists of them.  An argument without a name has
    its position as its name.  `used_results` are the positions of the results that something reads.
    """

    name: str
    target: str
    arguments: Mapping[str, Any]
    result: Known
    path: str = ""
    used_results: frozenset[int] = frozenset()

    @property
    def location(self) -> str:
        """The call's location for messages: its module, its name, its operator."""
        return f"{self.path + '/' if self.path else ''}{self.name} ({self.target})"


@entity
class CallBlock:
    """Calls in order.

    `inputs` are pairs (name, description). A description that is a number, text or None is the
    input's value. `outputs` are refs, numbers or None.
    """

    inputs: tuple[tuple[str, Known], ...]
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]


@frozen
class Constant:
    """An input that the program itself owns: a parameter, buffer or constant of this name."""

    name: str


@frozen
class Fixed:
    """An input that the export fixed to a value: a number, a text, None, a group of ranks, or a
    group for each dimension of a mesh."""

    value: Any


@entity
class TorchProgram:
    """A whole program.

    `block` has the calls. `owned` maps the names of block inputs that the caller does not pass to
    where their values come from. `updates` are the names of inputs that the program mutates. The
    first outputs of the block are the new values of these inputs, in order; the other outputs have
    the names `output_names`.

    `ranges` maps a symbol to its smallest and largest value, and `symbol_names` to the author's
    name of it, where known. `guards` are conditions on input sizes, as torch writes them; the
    program is correct only if they hold. `hints` maps formulas, as text, to the values they had
    when torch traced the program, where known.

    `arguments` are the paths to the inputs in the caller's arguments, without `Constant` inputs. A
    path begins with 0 and a position, or with 1 and a keyword; keys of containers follow.

    `contents` returns the elements of a constant. `trusted`: torch made the program in this
    process, so its calls are sound, and a contradiction is a fault of the import.
    """

    block: CallBlock
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
