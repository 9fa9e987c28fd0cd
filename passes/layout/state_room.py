"""Lays out states to which a run appends rows, so that their arrays may have room for later rows.

    %past : f32[1,8,past,64]  ->  shape (1, 8, past + seq, 64), storage sizes (1, 8, capacity, 64)

The caller's array is the front, along the axis that grows, of a row-major array.  The size of that
array is a symbol, which a run reads from the strides of the caller's array.
"""

from collections.abc import Iterator
from dataclasses import replace

from tcc.ir.graph import Graph, Node, Value, symbols_in, uses, walk_values
from tcc.ir.index import Index, const, symbol
from tcc.ir.layout import Layout, row_major
from tcc.ir.types import element_count
from tcc.ops.shapes import replaced
from tcc.passes.fuse.node_kinds import NodeKind, classify
from tcc.schedule.nest import typical


def appends(graph: Graph) -> Iterator[tuple[Value, Value, Node]]:
    """Yields (present, past, node) for each state to which `node` appends rows, in the order of the
    aliases."""
    producers = graph.producers()
    for present, past in graph.aliases:
        node = producers.get(present)
        if node is not None and node.op.name == "update_slice" and node.inputs[0] is past:
            yield present, past, node


def state_layouts(graph: Graph) -> dict[Value, Layout]:
    """Returns the layouts of the states of `graph` whose arrays may have room behind their rows.

    States with the same number of rows have the same capacity, which is a symbol.  A state keeps
    its row-major layout if room behind its rows moves no element, because the other axes are inside
    the axis that grows.  It also keeps it if calls or control flow read the state, or if it is
    several outputs.
    """
    names = {v.name for v in symbols_in(walk_values(graph))}
    opaque = [node for node in graph.nodes if classify(node) is NodeKind.OPAQUE]
    capacities: dict[Index, Index] = {}
    layouts: dict[Value, Layout] = {}
    for present, past, node in appends(graph):
        axis, shape = node.attrs.axis, past.shape
        readers = [n for n in opaque if n is not node and {present, past} & set(uses(n))]
        is_outer = element_count(shape[:axis]) is const(1)
        if is_outer or readers or graph.outputs.count(present) > 1:
            continue
        if shape[axis] not in capacities:
            name = "capacity"
            while name in names:
                name += "_"
            names.add(name)
            capacities[shape[axis]] = symbol(name, typical=typical(shape[axis]))
        sizes = replaced(shape, axis, capacities[shape[axis]])
        where = replace(row_major(shape), sizes=sizes, shared=(axis,))
        layouts |= {present: where, past: where}
    return layouts
