"""Tile kernels as Triton source: the proof that a tile program says nothing of the CPU.

One statement becomes one line.  Blocks are tensors (scalars have one axis of one), lanes are
`tl.arange`, guards are masks.  Kernels that Triton has no words for are refused: axes that are no
power of two, scratch memory, quotients of what may be negative, integer and data-dependent work.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, assert_never

from tcc.ir.expr import extent
from tcc.ir.index import Atom, Extremum, Index, Quotient, Remainder, Var, bounds, const
from tcc.ir.layout import strides
from tcc.ir.scalar import Apply, Arg, Cast, Const, IndexValue, Read, Scalar
from tcc.ir.tile import (
    Block,
    Broadcast,
    Compute,
    Contract,
    If,
    Load,
    Loop,
    Prefetch,
    Reduce,
    Relayout,
    Stmt,
    Store,
    Sync,
    TileKernel,
)
from tcc.ir.types import F32

HEADER = """\
import triton
import triton.language as tl


@triton.jit
def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


"""

_INFIX = MappingProxyType(
    {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
)
_CALLS = MappingProxyType(
    {
        **{"exp": "tl.exp", "sqrt": "tl.sqrt", "erf": "tl.erf", "log": "tl.log", "abs": "tl.abs"},
        **{"max": "_max", "select": "tl.where", "neg": "-"},
    }
)
# The smallest sides of a matrix instruction's operands; smaller products are sums.
_LEAST = 16


class RefusedError(ValueError):
    """A kernel that has no Triton text; the message says what stands in the way."""


def triton_text(kernel: TileKernel, name: str) -> str:
    """The source of a module with the kernel as the Triton function `name`.

    Its arguments are the buffers in order, then the sizes; the grid is one-dimensional.
    """
    return HEADER + "\n".join(_Printer().kernel(kernel, name)) + "\n"


class _Printer:
    """Lines of one kernel; `_indent` is that of the next."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = 1

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def kernel(self, kernel: TileKernel, name: str) -> list[str]:
        if kernel.locals:
            raise RefusedError("scratch memory")
        if any(b.dtype is not F32 for b in kernel.buffers):
            raise RefusedError("buffers that are not f32")
        params = [*(b.name for b in kernel.buffers), *(_word(v.name) for v in kernel.sizes)]
        head = ["@triton.jit", f"def {name}({', '.join(params)}):"]
        self._line("unit = tl.program_id(0)")
        for axis in reversed(kernel.axes):
            size = _index(extent(axis))
            self._line(f"{_word(axis.name)} = unit % ({size})")
            self._line(f"unit = unit // ({size})")
        self._body(kernel.body)
        return [*head, *self._lines]

    def _body(self, body: Sequence[Stmt]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: Stmt) -> None:
        match node:
            case Load():
                shape = _shape(node.out)
                other = f", other={float(node.fill)!r}" if node.guards else ""
                at = self._place(node, shape)
                self._line(f"{_name(node.out)} = tl.load({at}{self._mask(node, shape)}{other})")
            case Store():
                shape = _shape(node.block)
                at = self._place(node, shape)
                self._line(f"tl.store({at}, {_name(node.block)}{self._mask(node, shape)})")
            case Compute():
                self._compute(node)
            case Contract():
                self._contract(node)
            case Reduce():
                self._reduce(node)
            case Broadcast() | Relayout():
                self._set(node.out, _moved(node))
            case Loop():
                self._loop(node)
            case If():
                self._line(f"if {_index(node.lhs)} < {_index(node.rhs)}:")
                self._nested(node.then)
                if node.otherwise:
                    self._line("else:")
                    self._nested(node.otherwise)
            case Prefetch():
                pass  # a hint, which changes no value
            case Sync():
                raise RefusedError("a barrier")
            case _:
                assert_never(node)

    def _set(self, block: Block, text: str) -> None:
        self._line(f"{_name(block)} = {text}")

    def _nested(self, body: Sequence[Stmt]) -> None:
        self._indent += 1
        self._body(body)
        self._line("pass")
        self._indent -= 1

    def _loop(self, node: Loop) -> None:
        pairs = list(zip(node.carried, node.inits, strict=True))
        for carried, init in pairs:
            self._set(carried, _name(init))
        stop, start = _index(node.stop), _index(node.start)
        self._line(f"for {_word(node.var.name)} in range({start}, {stop}, {node.step}):")
        self._indent += 1
        self._body(node.body)
        targets = ", ".join(_name(b) for b in node.carried)
        values = ", ".join(_name(b) for b in node.yields)
        self._line(f"{targets} = {values}" if targets else "pass")
        self._indent -= 1
        for result, carried in zip(node.results, node.carried, strict=True):
            self._set(result, _name(carried))

    # ---- memory ----------------------------------------------------------------------------

    def _place(self, node: Load | Store, shape: tuple[int, ...]) -> str:
        if node.indirect:
            raise RefusedError("data-dependent indices")
        offset = const(0)
        for index, step in zip(node.indices, strides(node.buffer.sizes), strict=True):
            offset = offset + index * step
        return f"{node.buffer.name} + tl.zeros({shape}, tl.int32) + ({_index(offset, shape)})"

    def _mask(self, node: Load | Store, shape: tuple[int, ...]) -> str:
        parts = []
        for guard in node.guards:
            index, stop = _index(guard.index, shape), _index(guard.extent, shape)
            parts.append(f"({index} >= 0) & ({index} < {stop})")
        whole = f"tl.full({shape}, True, tl.int1)"
        return f", mask={' & '.join([whole, *parts])}" if parts else ""

    # ---- arithmetic --------------------------------------------------------------------------

    def _compute(self, node: Compute) -> None:
        shape = _shape(node.out)
        text = _scalar(node.body, node.args, shape)
        if all(_shape(b) != shape for b in node.args):
            text = f"tl.zeros({shape}, tl.float32) + ({text})"
        self._set(node.out, text)

    def _contract(self, node: Contract) -> None:
        summed = [x for x in node.a_axes if x not in node.out_axes]
        a, b = _name(node.a), _name(node.b)
        sides = {*node.a.shape, *node.b.shape, *node.out.shape}
        if len(node.a_axes) == len(node.b_axes) == len(node.out_axes) == 2 and len(summed) == 1:
            (k,) = summed
            if min(sides) >= _LEAST and node.out_axes[0] in node.a_axes:
                left = a if node.a_axes[1] == k else f"tl.trans({a})"
                right = b if node.b_axes[0] == k else f"tl.trans({b})"
                dot = f'tl.dot({left}, {right}, {_name(node.acc)}, input_precision="ieee")'
                self._set(node.out, dot)
                return
        order = [*node.out_axes, *summed]
        text = f"{_spread(node.a, node.a_axes, order)} * {_spread(node.b, node.b_axes, order)}"
        for axis in reversed(range(len(node.out_axes), len(order))):
            text = f"tl.sum({text}, {axis})"
        self._set(node.out, f"{_name(node.acc)} + {text}")

    def _reduce(self, node: Reduce) -> None:
        if node.monoid not in ("sum", "max"):
            raise RefusedError(f"a reduction by {node.monoid}")
        text = _name(node.blocks[0])
        for axis in node.axes:
            more = "" if node.monoid == "sum" else ", _max"
            text = f"tl.{'reduce' if more else 'sum'}({text}, {axis}{more}, keep_dims=True)"
        self._set(node.outs[0], text)


# ---- words ------------------------------------------------------------------------------------


def _word(name: str) -> str:
    return name.replace(".", "_")


def _name(block: Block) -> str:
    return f"b_{_word(block.name)}"


def _moved(node: Broadcast | Relayout) -> str:
    if isinstance(node, Broadcast):
        return f"tl.broadcast_to({_name(node.block)}, {_shape(node.out)})"
    moved = f"tl.permute({_name(node.block)}, {node.order})"
    source = moved if len(node.order) > 1 else _name(node.block)
    return f"tl.reshape({source}, {_shape(node.out)})"


def _shape(block: Block) -> tuple[int, ...]:
    for size in block.shape:
        if size & (size - 1):
            raise RefusedError(f"an axis of {size}")
    return block.shape or (1,)


def _spread(block: Block, axes: Sequence[str], order: Sequence[str]) -> str:
    """`block` with its axes in `order`, and new ones of one."""
    present = [x for x in order if x in axes]
    moved = f"tl.permute({_name(block)}, {tuple(axes.index(x) for x in present)})"
    text = moved if len(present) > 1 else _name(block)
    return f"{text}[{', '.join(':' if x in present else 'None' for x in order)}]"


def _index(index: Index, shape: tuple[int, ...] = ()) -> str:
    text = str(index.const)
    for monomial, coeff in index.terms:
        text += f" + {coeff}" + "".join(f" * {_atom(atom, shape)}" for atom in monomial)
    return f"({text})"


def _atom(atom: Atom, shape: tuple[int, ...]) -> str:
    match atom:
        case Var():
            return _lane(atom, shape)
        case Quotient() | Remainder():
            low = bounds(atom.num)[0]
            if low is None or low < 0:
                raise RefusedError(f"the quotient of {atom.num.key}, which may be negative")
            mark = "//" if isinstance(atom, Quotient) else "%"
            return f"({_index(atom.num, shape)} {mark} {_index(atom.den, shape)})"
        case Extremum():
            return f"tl.{atom.which}imum({_index(atom.a, shape)}, {_index(atom.b, shape)})"


def _lane(var: Var, shape: tuple[int, ...]) -> str:
    lanes = {f"l{axis}": axis for axis in range(len(shape))}
    if var.name not in lanes:
        return _word(var.name)
    axis = lanes[var.name]
    where = ", ".join(":" if n == axis else "None" for n in range(len(shape)))
    return f"tl.arange(0, {shape[axis]})[{where}]"


def _scalar(root: Scalar, args: Sequence[Block], shape: tuple[int, ...]) -> str:
    def text(scalar: Scalar) -> str:
        match scalar:
            case Const():
                return _constant(scalar.value)
            case IndexValue():
                return _index(scalar.index, shape)
            case Arg():
                return _name(args[scalar.number])
            case Cast():
                if scalar.dtype is not F32:
                    raise RefusedError(f"a cast to {scalar.dtype.name}")
                return f"({text(scalar.arg)}).to(tl.float32)"
            case Apply():
                return apply(scalar)
            case Read():
                raise RefusedError("a read inside a body")

    def apply(scalar: Apply) -> str:
        parts = [text(a) for a in scalar.args]
        if scalar.function in _INFIX:
            return f"({parts[0]} {_INFIX[scalar.function]} {parts[1]})"
        if scalar.function not in _CALLS:
            raise RefusedError(f"the function {scalar.function}")
        return f"{_CALLS[scalar.function]}({', '.join(parts)})"

    return text(root)


def _constant(value: Any) -> str:
    text = repr(value)
    return f'float("{text}")' if text in ("inf", "-inf", "nan") else text
