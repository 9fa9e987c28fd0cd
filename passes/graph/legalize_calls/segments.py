"""Sorts the updates of a scatter by their places, and combines neighbours in a tree.

The place of an update is the index of the result that it changes.  After the sort, updates of one
place are neighbours.  The tree has a node for the total of each 8, 64, ... neighbours.  The total
of a place combines at most 16 nodes of each level of the tree, for any number of updates.
"""

from tcc.ir.graph import GraphBuilder, Value
from tcc.ir.index import Index, bounds, minimum
from tcc.ops.data.sorting import MOST, merged_runs, most, steps
from tcc.passes.graph.check_sizes import demand
from tcc.passes.graph.emit import express

# The number of neighbours that a node of the tree combines.
FAN = 8
# The number of steps of a bisection that a single kernel computes.
_STEPS = 8


def sort_items(b: GraphBuilder, items: Value) -> Value:
    """Adds nodes that sort items in ascending order along the last axis; returns the sorted items.

    All items must be different.  An axis of symbolic size gets the merge steps that its largest
    size needs.
    """
    count = items.shape[-1] - 1
    longest = most(count)
    if (bounds(count)[1] or MOST + 1) > MOST:
        demand(b, minimum(count, MOST), count, "there are too many updates to sort")
    for level in range(steps(longest - 1)):
        halvings = -(-(level + 1) // _STEPS) * _STEPS
        (items,) = express(b, merged_runs(items.type, halvings), items)
    return items


def levels(count: Index) -> int:
    """Returns the number of levels of the tree of totals, for `count` updates.

    The top level has at most `FAN` nodes.
    """
    number, size = 0, most(count)
    while size > FAN:
        number, size = number + 1, -(-size // FAN)
    return number
