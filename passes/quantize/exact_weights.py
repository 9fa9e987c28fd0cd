"""Stores f32 constants in bf16 or f16 where one of these types has all of their values.

    kernel { y = sum(k) x[i, k] * w[k, j] }         w: f32, as f16 values of a file were widened
      ->  w in f16;  y = sum(k) x[i, k] * f32(w[k, j])

Results stay as they were, bit for bit.  Reading fewer bytes saves time, and converting them takes
some, so each kernel's price decides.  A narrow constant may cost a margin, because it also takes
half of the memory.

Requires layouts.  Establishes no more than that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from tcc.ir.graph import Graph, Handle, Value
from tcc.ir.op import Array
from tcc.ir.types import BF16, F16, F32, DType, TensorType
from tcc.passes.choose.content import site
from tcc.passes.layout.assign import Kernel, Placed, operand_reads
from tcc.passes.quantize.precision import in_floats, with_operands
from tcc.passes.quantize.quantize_weights import rounded
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.margins import MARGINS

# Smaller constants stay f32.
_LARGE = 1 << 14
# So many elements are compared at a time; the first reject most constants.
_PIECE = 1 << 16


def with_exact_weights(
    placed: Placed, planner: KernelChooser, outer: Mapping[Value, Graph] | None
) -> Placed:
    """Returns `placed` with constants in types that have all of their values.

    For a body, `outer` maps each constant of an enclosing graph to that graph.  Returns `placed`
    itself on a target without prices, and where nothing becomes narrow.
    """
    store, constants = placed.graph.store, dict[Value, Handle]()
    visible = placed.visible(outer) if planner.prices_layouts else {}
    types = {v: t for v, g in visible.items() if (t := _narrowest(v, g)) is not None}

    def changed(kernel: Kernel) -> Kernel:
        """Returns `kernel` with narrow constants if its price allows that."""
        filled = {v for _, node, v in operand_reads(kernel) if node.fill is not None}
        pairs = {
            v: Value(f"{v.name}.{types[v].name}", TensorType(types[v], v.shape))
            for v in kernel.operands
            if v in types and v not in filled
        }
        if not pairs:
            return kernel
        replacements = {v: in_floats(narrow) for v, narrow in pairs.items()}
        narrow_kernel = with_operands(kernel, replacements, kernel.results)
        fixed = {*visible, *pairs.values()}
        if not planner.ledger.either(
            lambda: site("exact-weights", kernel.expr, narrow_kernel.expr),
            ("narrow", [planner.seconds(narrow_kernel, placed.layouts, fixed)]),
            ("f32", lambda: [planner.seconds(kernel, placed.layouts, fixed)]),
            MARGINS["shared layout"],
            kernel.loc,
        ):
            return kernel
        for value, narrow in pairs.items():
            make = partial(np.asarray, dtype=types[value].carrier)
            handle = visible[value].constants[value]
            constants[narrow] = store.derive(make, types[value].name, [handle])
        return narrow_kernel

    steps = placed.with_kernels(changed)
    graph = replace(placed.graph, constants={**placed.graph.constants, **constants})
    return replace(placed, graph=graph, steps=steps) if constants else placed


def _narrowest(value: Value, graph: Graph) -> DType | None:
    """Returns the type of two bytes that has all values of a large f32 constant, if there is
    one."""
    count = value.type.count or 0
    handle = graph.constants[value]
    if value.dtype is not F32 or count < _LARGE or graph.store.ranks(handle) > 1:
        return None
    return graph.store.fact(_exact_type, (handle,))


def _exact_type(arrays: Sequence[Array]) -> DType | None:
    """Returns the first type of two bytes that has all values of an f32 array, if there is one."""
    flat = arrays[0].reshape(-1)
    pieces = [flat[n : n + _PIECE] for n in range(0, len(flat), _PIECE)]
    return next((t for t in (BF16, F16) if all(_exact(piece, t) for piece in pieces)), None)


def _exact(array: Array, dtype: DType) -> bool:
    """Returns True if `dtype` has the values of a contiguous f32 array."""
    narrow = rounded(array, dtype)
    return narrow is not None and np.array_equal(
        narrow.astype(np.float32).view(np.uint32), array.view(np.uint32)
    )
