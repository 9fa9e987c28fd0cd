"""Which calls of a program can be imported, and the table of those that cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from tcc.errors import UserError
from tcc.frontends.torch_complex import complex_converter_of, has_complex
from tcc.frontends.torch_context import call_location, call_of
from tcc.frontends.torch_converters import converter_of

# Regions that run as they stand, and which argument holds their calls.
REGIONS: Mapping[str, int] = MappingProxyType({"wrap_with_set_grad_enabled": 1})
_IGNORED = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_async.msg",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
_NAMES_SHOWN = 3


def is_ignored(target: Any) -> bool:
    """Whether a call only states what the export has proved."""
    return str(target) in _IGNORED


def is_arithmetic(target: Any) -> bool:
    """Whether a call computes a size from sizes; torch has its value as an expression."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return target._schema.name in ("aten::sym_size", "aten::sym_numel", "aten::sym_stride")


def check_calls(program: Any) -> None:
    """Raises one `UserError` that lists every operator of the program that tcc does not have."""
    missing: dict[str, list[str]] = {}
    for node in _calls(program.graph_module):
        if not _is_supported(node):
            missing.setdefault(str(call_of(node)[0]), []).append(call_location(node))
    if missing:
        rows = sorted(missing.items(), key=lambda row: (-len(row[1]), row[0]))
        raise UserError(
            f"{len(rows)} operators of the program are not supported"
            if len(rows) > 1
            else "an operator of the program is not supported",
            why="\n" + "\n".join(_row(*row) for row in rows),
            hint="tcc ops lists what is supported",
        )


def _row(operator: str, places: list[str]) -> str:
    shown = ", ".join(places[:_NAMES_SHOWN]) + ", ..." * (len(places) > _NAMES_SHOWN)
    return f"    {operator}  {len(places)}  {shown}"


def _is_supported(node: Any) -> bool:
    target, _ = call_of(node)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in REGIONS
    if is_arithmetic(target) or is_ignored(target):
        return True
    if has_complex(node):
        return complex_converter_of(target) is not None
    return target is torch.ops.aten._assert_scalar.default or converter_of(target) is not None


def _calls(module: Any) -> Iterator[Any]:
    """The calls of a graph and of the graphs it holds."""
    for inner in module.modules():
        if isinstance(inner, torch.fx.GraphModule):
            yield from (node for node in inner.graph.nodes if node.op == "call_function")
