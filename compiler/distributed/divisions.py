"""Checks the divisions of a plan, from the texts of its strategies alone.

    h = matmul(x : f32[8,64], w : f32[64,10])        whole, split(1) -> split(1)

It is right on 2 ranks.  On 4 ranks, axis 1 of w has 10 elements, which 4 ranks do not divide.  On
a mesh, each axis divides the blocks that the axes before it leave.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from tcc.distributed.plan import Plan
from tcc.distributed.sharding import Sharding, Shardings, Split, parse_sharding
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, Node
from tcc.ir.index import as_int, const
from tcc.ir.types import TensorType
from tcc.ops.shapes import replaced
from tcc.zipped import zip_equal

_SHARDING = re.compile(r"\w+(?:\([^()]*\))?")
_MOST_RANKS = 64  # in a hint


@frozen
class _Site:
    """A value that a strategy of a node divides: `type` is None for an absent operand.

    `name` says in messages which value it is, and `where` names the plan and the node.
    """

    name: str
    type: TensorType | None
    where: str


def check_divisions(graph: Graph, plan: Plan) -> int:
    """Returns the number of axes that the strategies of `plan` divide.

    Raises UserError for a text that is no strategy, for another number of operands or results than
    the node has, for an axis that a value lacks, and for an axis that the ranks do not divide.
    """
    nodes = {node.result.name: node for node in graph.nodes if node.outputs}
    count = 0
    for name, texts in plan.strategies.items():
        if name not in nodes:  # `fixed_strategies` refuses all other names
            continue
        where = f"{plan.place}: {name}"
        sites = [*_sites(nodes[name], where)]
        for text, ranks in zip_equal(texts, plan.mesh):
            shardings = _shardings(nodes[name], text, where)
            for number, sharding in enumerate(shardings):
                if isinstance(sharding, Split):
                    sites[number] = _checked_split(sites[number], sharding, ranks)
                    count += 1
    return count


def read_shardings(text: str) -> tuple[Shardings, Shardings]:
    """Returns the shardings of operands and of results in the text of a strategy.

    Raises ValueError for a text that no strategy has.
    """
    sides = text.split(" -> ")
    words = [_SHARDING.findall(side) for side in sides]
    if len(sides) != 2 or [", ".join(parts) for parts in words] != sides:
        raise ValueError(f"{text[:80]!r} is no strategy")
    operands, results = (tuple(map(parse_sharding, parts)) for parts in words)
    return operands, results


def _sites(node: Node, where: str) -> Iterator[_Site]:
    """Yields the operands and the results of a node."""
    for title, values in ("operand", node.inputs), ("result", node.outputs):
        for number, value in enumerate(values):
            name = f"{title} {number}" + (f" ({value.name})" if value is not None else "")
            yield _Site(name, None if value is None else value.type, where)


def _shardings(node: Node, text: str, where: str) -> Shardings:
    """Returns the shardings of the operands and results of a node in the text of a strategy."""
    try:
        operands, results = read_shardings(text)
        if (len(operands), len(results)) != (len(node.inputs), len(node.outputs)):
            counts = f"{len(node.inputs)} operands and {len(node.outputs)} results"
            raise ValueError(f"{text[:80]!r} has not a sharding for each of {counts}")
    except ValueError as error:
        raise UserError(
            "the text is no strategy of the node",
            where=where,
            why=error,
            hint="write whole, split(AXIS), split(AXIS, GROUPS) or partial(sum) for each, as in "
            "'whole, split(1) -> split(1)'; tcc plan MODEL --explain "
            f"{node.result.name} lists its strategies",
        ) from error
    return (*operands, *results)


def _checked_split(site: _Site, split: Split, ranks: int) -> _Site:
    """Returns the site of a rank's block."""
    rank = 0 if site.type is None else site.type.rank
    if split.axis >= rank or site.type is None:
        raise UserError(
            f"the plan divides axis {split.axis}, which is not there",
            where=f"{site.where}, {site.name}, axis {split.axis}",
            why=f"{'the operand is absent' if site.type is None else repr(site.type)} has "
            f"{rank} axes",
            hint=f"divide one of axes 0 to {rank - 1}, or write whole" if rank else "write whole",
        )
    block = block_type(site.type, split, ranks)
    if block is None:
        size = as_int(site.type.shape[split.axis])
        raise UserError(
            f"{ranks} ranks do not divide axis {split.axis}",
            where=f"{site.where}, {site.name}, axis {split.axis}",
            why=f"it has {'a symbolic number of' if size is None else size} elements"
            + (f" in {split.groups} groups" if split.groups > 1 else ""),
            hint=_remedy(size, split.groups),
        )
    return replace(site, type=block)


def block_type(type: TensorType, sharding: Sharding, ranks: int) -> TensorType | None:
    """Returns the type of a rank's array; None where the ranks have no equal blocks."""
    if not isinstance(sharding, Split):
        return type
    axis = sharding.axis
    if axis >= type.rank or not has_equal_blocks(type, sharding, ranks):
        return None
    size = type.shape[axis] // (ranks // sharding.copies)
    if sharding.block:
        size = const(sharding.block * sharding.groups)
    return replace(type, shape=replaced(type.shape, axis, size))


def has_equal_blocks(type: TensorType, split: Split, ranks: int) -> bool:
    """True where the ranks have equal blocks of each group of an axis, with or without padding."""
    size, (parts, remainder) = type.shape[split.axis], divmod(ranks, split.copies)
    if remainder or as_int(size) == 0:
        return False
    if not split.block:
        count = parts * split.groups
        return size // count * count is size
    group, remainder = divmod(as_int(size) or 0, split.groups)
    return not remainder and split.block < group < split.block * parts


def _remedy(size: int | None, groups: int) -> str:
    counts = [n for n in range(2, _MOST_RANKS + 1) if size and size % (groups * n) == 0]
    if not counts:
        return "divide another axis, or write whole"
    return f"divide another axis, write whole, or plan for {', '.join(map(str, counts))} ranks"
