"""The text of graphs and expressions, which tests parse back.

    size b in [1,64] divisor 4
    graph main(%x : f32[b,64]) {
      %w = const @5feceb66ffc86f38 : f32[64,64]
      %y = matmul(%x, %w) : f32[b,64]    ; layer.0/proj
      return %y
    }

    expr(p0: f32[b,64]) {
      s0[i0: 0..b] = max(i1: 0..64) p0[i0,i1]
      s1[i0: 0..b, i1: 0..64] = exp((p0[i0,i1] - s0[i0]))
      return s1
    }

A constant with one array per rank is `const @5feceb66ffc86f38 on 2 ranks : f32[64,32]`.

Operands of an expression are `p0, p1, ...`.  Component 1 of stage 2 is `s2.1`, and component 0 is
`s2`.  A scalar that is used more than once in a stage is named by `let`.  Names that are not words
are quoted as in JSON.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tcc.errors import InternalError
from tcc.frozen import field_names
from tcc.ir.expr import Expr, Stage
from tcc.ir.expr.scalar import (
    COMPARISONS,
    Apply,
    Arg,
    Cast,
    Const,
    IndexValue,
    Read,
    Scalar,
    Scalars,
    Source,
    StageRef,
    children,
    walk,
)
from tcc.ir.graph import Graph, Node, walk_nodes
from tcc.ir.index import Index, Var, free_vars
from tcc.ir.layout import Layout
from tcc.ir.types import DType, TensorType

INFIX = MappingProxyType(
    {
        "add": "+",
        "sub": "-",
        "mul": "*",
        "div": "/",
        **COMPARISONS,
    }
)

_BARE_NAME = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./#]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def graph_text(graph: Graph) -> str:
    """Returns the text of a graph: its size symbols, then the graph; ends with a newline."""
    printer = _Printer()
    results = ((*n.outputs, n.attrs) for n in walk_nodes(graph))
    symbols = _symbols((graph.inputs, *results, tuple(graph.constants)))
    lines = map(size_line, dict.fromkeys(symbols))
    return "\n".join([*lines, printer.graph(graph, "")]) + "\n"


def expr_text(expr: Expr, *, static: bool = False) -> str:
    """Returns the text of an expression: its size symbols, then the stages; ends with a newline.

    `static` says that the expression has no size symbol, which saves the search for them.
    """
    lines = [] if static else [size_line(var) for var in dict.fromkeys(_expr_symbols(expr))]
    return "\n".join([*lines, _expr(expr, "")]) + "\n"


def quoted(name: str) -> str:
    """Returns `name` itself if it is a plain word, else a JSON string."""
    return name if _BARE_NAME.fullmatch(name) else json.dumps(name)


# ---- size symbols ------------------------------------------------------------------------------


def size_line(var: Var) -> str:
    """Returns the line that declares a size symbol: `size n in [1,64] divisor 4 typical 32`."""
    return f"size {var.key} {_facts(var)}"


def _facts(var: Var) -> str:
    divisor = "" if var.divisor == 1 else f" divisor {var.divisor}"
    typical = "" if var.typical is None else f" typical {var.typical}"
    return f"in [{var.lo},{'' if var.hi is None else var.hi}]{divisor}{typical}"


def _symbols(item: Any) -> Iterator[Var]:
    """Yields the size symbols in an attribute or type, in order, with repetitions."""
    return (var for var in variables(item) if var.extent is None)


def variables(item: Any) -> tuple[Var, ...]:
    """Returns the variables in a value, an attribute or a type, in order, with repetitions.

    A body gives the variables of its inputs, and an expression its size symbols.
    """
    match item:
        case Index():
            return free_vars(item)
        case Expr():
            return _expr_symbols(item)
        case Layout():
            return _layout_variables(item)
        case DType():
            return ()
        case Graph():
            return variables(item.inputs)
    parts = item if isinstance(item, tuple) else (getattr(item, n) for n in field_names(item))
    return tuple(var for part in parts for var in variables(part))


@lru_cache(1024)
def _layout_variables(layout: Layout) -> tuple[Var, ...]:
    return variables((layout.sizes, layout.indices, layout.axes))


@lru_cache(1024)  # cached, because many sites of a compile have the same expressions
def _expr_symbols(expr: Expr) -> tuple[Var, ...]:
    return tuple(_each_symbol(expr))


def _each_symbol(expr: Expr) -> Iterator[Var]:
    yield from _symbols(expr.params)
    for stage in expr.stages:
        yield from _symbols(tuple(v.extent for v in stage.loops))
        for scalar in walk(*stage.body):
            if isinstance(scalar, Read):
                bound = [v for v, _ in scalar.indirect]
                yield from (v for v in _symbols(scalar.indices) if v not in bound)
                yield from _symbols(tuple(v.extent for v in bound))
            elif isinstance(scalar, IndexValue):
                yield from _symbols(scalar.index)


# ---- graphs ------------------------------------------------------------------------------------


class UniqueNames:
    """Gives every item a unique name; appends a number to a name that is taken already."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._taken: set[str] = set()

    def __call__(self, item: Any) -> str:
        if item not in self._names:
            name, count = item.name, 1
            while name in self._taken:
                count += 1
                name = f"{item.name}#{count}"
            self._taken.add(name)
            self._names[item] = f"%{quoted(name)}"
        return self._names[item]


class _Printer:
    def __init__(self) -> None:
        self.name = UniqueNames()

    def graph(self, graph: Graph, indent: str) -> str:
        inner = indent + "  "
        inputs = ", ".join(f"{self.name(v)} : {v.type!r}" for v in graph.inputs)
        name = graph.name if _WORD.fullmatch(graph.name) else json.dumps(graph.name)
        lines = [f"graph {name}({inputs}) {{"]
        for value, handle in graph.constants.items():
            ranks = graph.store.ranks(handle)
            by_rank = f" on {ranks} ranks" if ranks > 1 else ""
            text = f"const @{handle.digest[:16]}{by_rank} : {value.type!r}"
            lines.append(f"{inner}{self.name(value)} = {text}")
        lines.extend(inner + self.node(node, inner) for node in graph.nodes)
        lines.extend(f"{inner}alias {self.name(a)} = {self.name(b)}" for a, b in graph.aliases)
        outputs = ", ".join(map(self.name, graph.outputs))
        lines.append(f"{inner}return {outputs}".rstrip())
        return "\n".join([*lines, indent + "}"])

    def node(self, node: Node, indent: str) -> str:
        inputs = ", ".join(self.name(v) if v else "none" for v in node.inputs)
        attrs = self._fields(node.attrs, indent)
        text = f"{node.op.name}({inputs})" + (f" {attrs}" if attrs != "{}" else "")
        if node.outputs:
            outputs = ", ".join(map(self.name, node.outputs))
            types = ", ".join(repr(v.type) for v in node.outputs)
            text = f"{outputs} = {text} : {types}"
        loc = node.loc
        plain = loc.isprintable() and loc == loc.strip() and not loc.startswith('"')
        return text + (f"    ; {loc if plain else json.dumps(loc)}" if loc else "")

    def _fields(self, attrs: Any, indent: str) -> str:
        if not is_dataclass(attrs):
            raise InternalError(f"attributes of type {type(attrs).__name__} have no text")
        parts = (
            f"{f.name}={self.attribute(getattr(attrs, f.name), indent)}" for f in fields(attrs)
        )
        return "{" + ", ".join(parts) + "}"

    def attribute(self, item: Any, indent: str) -> str:
        match item:
            case None:
                return "none"
            case bool() | int() | float():
                return number(item)
            case str():
                return json.dumps(item)
            case Index():
                return item.key
            case DType() | Enum():
                return item.name
            case TensorType():
                return repr(item)
            case tuple():
                return "(" + ", ".join(self.attribute(part, indent) for part in item) + ")"
            case Graph():
                return self.graph(item, indent)
            case Expr():
                return _expr(item, indent)
            case _:
                return self._fields(item, indent)


def number(value: bool | int | float) -> str:
    """Returns `true`, `-3`, `0.5`, `nan`, `-inf`: text that tells bool, int and float apart."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


# ---- expressions -------------------------------------------------------------------------------


def _expr(expr: Expr, indent: str) -> str:
    inner = indent + "  "
    params = ", ".join(f"p{n}: {t or 'none'}" for n, t in enumerate(expr.params))
    lines = [f"expr({params}) {{"]
    lines += (inner + _stage(n, stage, inner + "  ") for n, stage in enumerate(expr.stages))
    lines.append(f"{inner}return {', '.join(map(source_text, expr.outputs))}")
    return "\n".join([*lines, indent + "}"])


def _stage(n: int, stage: Stage, indent: str) -> str:
    head = f"s{n}[{', '.join(map(iterator_text, stage.iters))}] ="
    if stage.monoid or stage.reduce:
        head += f" {stage.monoid or 'none'}({', '.join(map(iterator_text, stage.reduce))})"
    lets, bodies = body_text(stage.body)
    indented = [indent + line for line in (*lets, bodies)]
    return "\n".join([head, *indented]) if lets else f"{head} {bodies}"


def body_text(body: Scalars) -> tuple[list[str], str]:
    """Returns (lines, text) of the scalars of a stage's body.

    `lines` are `let` lines, which name the scalars that occur more than once. `text` is the list of
    the components, which uses these names.
    """
    names: dict[Scalar, str] = {}
    lets = []
    for scalar in _shared(body):
        text = scalar_text(scalar, names, outer=True)
        names[scalar] = f"v{len(names)}"
        lets.append(f"let {names[scalar]} = {text} in")
    return lets, ", ".join(scalar_text(s, names, outer=True) for s in body)


def iterator_text(var: Var) -> str:
    """Returns `i0: 0..n` for an iterator, and `n in [1,64] divisor 4` for a size symbol."""
    return f"{var.key} {_facts(var)}" if var.extent is None else f"{var.key}: 0..{var.extent.key}"


def _shared(body: Scalars) -> list[Scalar]:
    """Returns the functions and casts that a body uses more than once, operands before users."""
    order = walk(*body)
    uses = dict.fromkeys(order, 0)
    for scalar in (*(c for s in order for c in children(s)), *body):
        uses[scalar] += 1
    return [s for s in order if uses[s] > 1 and isinstance(s, Apply | Cast)]


def source_text(source: Source) -> str:
    """Returns `p0` for an operand, `s1` or `s1.2` for a component of a stage."""
    if isinstance(source, StageRef):
        return f"s{source.stage}" + (f".{source.component}" if source.component else "")
    return f"p{source}"


def scalar_text(
    root: Scalar, names: dict[Scalar, str] | None = None, *, outer: bool = False
) -> str:
    """Returns the text of a scalar.

    `names` maps scalars that a `let` line has bound to their names. `outer` omits the parentheses
    around an infix operator at the top.
    """
    let_names = names or {}

    def text(scalar: Scalar, outer: bool = False) -> str:
        if scalar in let_names:
            return let_names[scalar]
        match scalar:
            case Const():
                return f"{number(scalar.value)}:{scalar.dtype.name}"
            case IndexValue():
                return f"index({scalar.index.key}):{scalar.dtype.name}"
            case Arg():
                return f"arg({scalar.number}):{scalar.dtype.name}"
            case Cast():
                return f"cast({text(scalar.arg, True)}, {scalar.dtype.name})"
            case Read():
                return _read(scalar)
            case Apply():
                if scalar.function in INFIX:
                    a, b = map(text, scalar.args)
                    infix = f"{a} {INFIX[scalar.function]} {b}"
                    return infix if outer else f"({infix})"
                return f"{scalar.function}({', '.join(text(a, True) for a in scalar.args)})"

    def _read(node: Read) -> str:
        parts = [",".join(i.key for i in node.indices)]
        if node.fill is not None:
            parts.append(f"fill {number(node.fill)}")
        parts.extend(f"{iterator_text(v)} = {text(s, True)}" for v, s in node.indirect)
        return f"{source_text(node.source)}[{' | '.join(parts)}]"

    return text(root, outer)
