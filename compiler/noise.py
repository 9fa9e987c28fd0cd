"""Random inputs of a graph, for measurements without data."""

from collections.abc import Sequence

import numpy as np
from tcc.ir.graph import Graph, Value
from tcc.ir.index import as_int
from tcc.ir.op import Array, Trait
from tcc.runtime import ModulePort
from tcc.schedule.nest import typical


def graph_ports(graph: Graph) -> tuple[ModulePort, ...]:
    """Returns the inputs of a graph as a module describes them."""
    return tuple(
        ModulePort(
            value.name,
            value.dtype.name,
            tuple(map(as_int, value.shape)),
            "x".join(dim.key for dim in value.shape),
        )
        for value in graph.inputs
    )


def integer_values(graph: Graph) -> dict[str, Sequence[int]]:
    """Returns the integers that inputs of a graph may hold, by input name.

    They are the row numbers of a constant table that the input indexes, or the constants that the
    input is compared with. A single constant counts only for scalars, because a scalar equal to it
    may take another branch of the model.
    """
    inputs = {v: v for v in graph.inputs if v.dtype.is_integer}
    rows: dict[Value, int] = {}
    constants: dict[Value, set[int]] = {}
    for node in graph.nodes:
        read_inputs = [v and inputs.get(v) for v in node.inputs]
        first, second = (*read_inputs, None, None)[:2]
        arrays = [graph.constant(v) for v in node.inputs]
        if (
            node.op.name in ("gather", "gather_levels")
            and arrays[0] is not None
            and second is not None
        ):
            count = arrays[0].shape[getattr(node.attrs, "axis", 1)]
            rows[second] = min(count, rows.get(second, count))
        elif node.op.name == "equal" and any(array is not None for array in arrays):
            numbers = {int(n) for array in arrays if array is not None for n in array.flat}
            for value in filter(None, read_inputs):
                constants.setdefault(value, set()).update(numbers)
        elif first is not None and (node.op.name == "cast" or Trait.MOVEMENT in node.op.traits):
            inputs[node.result] = first
    values = {
        **{v: sorted(numbers) for v, numbers in constants.items()},
        **{v: range(count) for v, count in rows.items()},
    }
    return {v.name: n for v, n in values.items() if len(n) > 1 or not v.shape}


def noise(graph: Graph) -> dict[str, Array]:
    """Returns an array for each input of a graph, by name; symbols have their typical sizes.

    Floats are normally distributed, and integers are drawn from `integer_values`, else from 0 and
    1.  Equal graphs give equal arrays.
    """
    values, arrays = integer_values(graph), {}
    for number, value in enumerate(graph.inputs):
        rng, shape = np.random.default_rng([0, number]), tuple(map(typical, value.shape))
        drawn = (
            rng.standard_normal(shape)
            if value.dtype.is_float
            else rng.choice(np.asarray(values.get(value.name, (0, 1))), shape)
        )
        arrays[value.name] = np.asarray(drawn, value.dtype.carrier)
    return arrays
