"""Converters of torch's functional collectives. A collective returns when its result is complete,
so `wait_tensor` has nothing to do."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from tcc.frontends.emit import constant, emit
from tcc.frontends.operand import Operand
from tcc.frontends.torch.calls import Ranks
from tcc.frontends.torch.context import CallContext, Converter, Converters, Integers
from tcc.ir.index import Index


def _collective(op: str, root: str = "") -> Converter:
    """Returns a converter that emits `op` with the call's arguments; `root` names the argument of
    the root rank."""

    def convert(ctx: CallContext) -> Operand:
        group, sized = _group(ctx), ctx.has("group_size")
        return emit(
            op,
            ctx.lined("input") if sized else ctx.operand("input"),
            ranks=ctx.integer("group_size") if sized else len(next(iter(group.members), ())),
            reduction=_REDUCTIONS.get(name := ctx.given("reduce_op", "sum"), name),
            root=ctx.integer(root) if root else 0,
            group=group.name,
            members=group.members,
        )

    return convert


def _group(ctx: CallContext) -> Ranks:
    argument = ctx.arguments["group_name"]
    return argument if isinstance(argument, Ranks) else Ranks(str(argument))


# torch's names of reductions that differ from the op table's.
_REDUCTIONS = MappingProxyType({"product": "prod"})


def _all_to_all(ctx: CallContext, x: Operand) -> Operand:
    sent, received = (ctx.indices(f"{side}_split_sizes") for side in ("input", "output"))
    group = _group(ctx)
    return x.all_to_all(
        ranks=len(sent), group=group.name, members=group.members, rows=(*sent, *received)
    )


def _coordinate(full_mesh: Integers, index: int) -> Index:
    """Returns this rank's position along a dimension of a mesh.

    The call's argument `full_mesh` is a tensor of ranks. Along its first axis, it may contain
    several meshes; this rank belongs to one of them.
    """
    axis = index + 1
    size = full_mesh.extent(axis) or 0
    place = np.arange(size).reshape(-1, *[1] * (full_mesh.rank - axis - 1))
    candidates = full_mesh.equal(emit("rank")).select(constant(place), -1)
    last = candidates.flat().max(0, keepdims=True)
    (number,) = last.as_sizes("the rank's place in the mesh", 0, size - 1)
    return number


CONVERTERS: Converters = {
    "_c10d_functional.all_reduce": _collective("all_reduce"),
    "_c10d_functional.all_gather_into_tensor": _collective("all_gather"),
    "_c10d_functional.reduce_scatter_tensor": _collective("reduce_scatter"),
    "_c10d_functional.broadcast": _collective("broadcast", "src"),
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.wait_tensor": lambda ctx: ctx.operand("tensor"),
    "_dtensor.mesh_get_process_group": lambda ctx: ctx.arguments["mesh"][ctx.integer("dim")],
    "device_mesh._runtime_compute_coordinate_on_dim": _coordinate,
}
