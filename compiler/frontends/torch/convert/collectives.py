"""Converters of torch's functional collectives; what they give is there at once, so a wait is
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converter


def _collective(op: str, root: str = "") -> Converter:
    """The op on the operand; of the call's arguments those that it has, and `root` of that name."""

    def convert(ctx: CallContext) -> Operand:
        return ctx.emit(
            op,
            ctx.lined("input") if ctx.has("group_size") else ctx.operand("input"),
            ranks=ctx.integer("group_size") if ctx.has("group_size") else 0,
            reduction=_REDUCTIONS.get(name := ctx.given("reduce_op", "sum"), name),
            root=ctx.integer(root) if root else 0,
            group=ctx.text("group_name"),
        )

    return convert


# torch's names of reductions that have others here.
_REDUCTIONS = MappingProxyType({"product": "prod"})


def _all_to_all(ctx: CallContext) -> Operand:
    sent, received = (ctx.integers(f"{side}_split_sizes") for side in ("input", "output"))
    if len({*sent, *received}) != 1:
        raise ctx.fail(f"blocks of different sizes: {sent} and {received}", "pad them to one size")
    group = ctx.text("group_name")
    return ctx.emit("all_to_all", ctx.operand("input"), ranks=len(sent), group=group)


CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        "_c10d_functional.all_reduce": _collective("all_reduce"),
        "_c10d_functional.all_gather_into_tensor": _collective("all_gather"),
        "_c10d_functional.reduce_scatter_tensor": _collective("reduce_scatter"),
        "_c10d_functional.broadcast": _collective("broadcast", "src"),
        "_c10d_functional.all_to_all_single": _all_to_all,
        "_c10d_functional.wait_tensor": lambda ctx: ctx.operand("tensor"),
    }
)
