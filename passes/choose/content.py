"""Names the sites of decisions by texts that contain no names of the model.

    x[batch, 64], batch in 1..   ->   x: f32[n0,64] with n0 in 1..

A site is a place where the compiler chooses among alternatives.  Size symbols are renamed to n0,
n1, ... in the order in which they occur.  So equal parts of a model have equal sites.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from tcc.errors import InternalError
from tcc.frozen import field_names
from tcc.ir.expr import Expr, substitute_sizes
from tcc.ir.graph import Graph
from tcc.ir.graph.text import expr_text, graph_text, iterator_text, number, variables
from tcc.ir.index import Index, Var, substitute, symbol
from tcc.ir.layout import Layout, resized
from tcc.ir.types import DType, TensorType
from tcc.schedule.alternatives import Site
from tcc.schedule.choice_text import text_of


def site(kind: str, *parts: Any, number: int = 0) -> Site:
    """Returns the site of a decision that depends on `parts`.

    A part is an expression, a layout, a type, a node's attributes, a text, a number, or a tuple of
    parts.  Sites of equal parts get different `number`s if they are decided separately.
    """
    symbols = dict.fromkeys(v for v in variables(parts) if v.extent is None)
    names = {
        v: symbol(f"n{place}", v.lo, v.hi, v.divisor, v.typical) for place, v in enumerate(symbols)
    }
    texts = (_text(_renamed(part, names), static=not names) for part in parts)
    return Site(kind, "; ".join(texts), number)


def _renamed(item: Any, names: Mapping[Var, Index]) -> Any:
    """Returns `item` with its size symbols replaced by the values that `names` has for them."""
    if not names:
        return item
    match item:
        case Index():
            return substitute(item, names)
        case Expr():
            return substitute_sizes(item, names)
        case Layout(fill=None):
            return resized(item, names)
        case TensorType():
            return TensorType(item.dtype, tuple(substitute(dim, names) for dim in item.shape))
        case tuple():
            return tuple(_renamed(part, names) for part in item)
        case None | bool() | int() | float() | str() | DType() | Var() | Enum() | Graph():
            return item
    return replace(item, **{f.name: _renamed(getattr(item, f.name), names) for f in fields(item)})


def _text(item: Any, *, static: bool) -> str:
    """Returns the text of a part of a content; `static` says that it has no size symbols."""
    match item:
        case bool() | int() | float():
            return number(item)
        case Index():
            return item.key
        case Var():
            return iterator_text(item)
        case DType() | Enum():
            return item.name
        case TensorType():
            return repr(item)
        case Expr():
            return _expr_text(item, static)
        case Layout(fill=None):
            return _layout_text(item)
        case Graph():
            return graph_text(item).rstrip()
        case None | str():
            return text_of(item)
        case tuple():
            return f"({', '.join(_text(part, static=static) for part in item)})"
        case _ if is_dataclass(item):
            return _object_text(item, static)
    raise InternalError(f"a site's content of type {type(item).__name__} has no text")


def _object_text(item: Any, static: bool) -> str:
    parts = (f"{name}={_text(getattr(item, name), static=static)}" for name in field_names(item))
    return f"{type(item).__name__}({', '.join(parts)})"


# The texts are cached, because many sites of a compile have the same expressions and layouts. Equal
# expressions have equal texts. A layout's fill could be 0.0 or -0.0, which are equal.


@lru_cache(1024)
def _expr_text(expr: Expr, static: bool) -> str:
    return expr_text(expr, static=static).rstrip()


@lru_cache(1024)
def _layout_text(layout_without_fill: Layout) -> str:
    return _object_text(layout_without_fill, True)
