"""Converters of LSTM, GRU and RNN to the cells of `frontends.recurrent`.

They resolve ONNX's layout, direction, peepholes, clipping, coupled gates and lengths per sequence.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from tcc.frontends.emit import full, stack
from tcc.frontends.onnx.context import Converters, NodeContext, Results
from tcc.frontends.onnx.contrib.quantize import quantised_product
from tcc.frontends.onnx.convert.activations import activation
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.recurrent import (
    KINDS,
    Activation,
    Cell,
    CellKind,
    Product,
    by_matrices,
    run_cell,
    with_biases,
)
from tcc.frozen import frozen
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import I64

# ---- activations ---------------------------------------------------------------------------------


def _activations(ctx: NodeContext, defaults: Sequence[str], directions: int) -> list[Activation]:
    """Returns the activation functions, direction by direction.

    Each function takes its parameters from the attributes' lists of alphas and betas, in order.
    """
    declared_names = ctx.texts("activations") if ctx.has("activations") else ()
    names = declared_names or tuple(defaults) * directions
    if len(names) != len(defaults) * directions:
        raise Refusal(f"{len(names)} activations; {len(defaults) * directions} are due")
    alphas = iter(ctx.reals("activation_alpha"))
    betas = iter(ctx.reals("activation_beta"))
    return [activation(name.lower(), alphas, betas) for name in names]


# ---- one direction -------------------------------------------------------------------------------


def _direction(operand: Operand, number: int, rank: int) -> Operand:
    """Returns the part of an operand of rank `rank` that belongs to one direction."""
    count = as_int(operand.ranked(rank).shape[0])
    if count is not None and number >= count:
        raise Refusal(f"{operand.type!r} has nothing for direction {number + 1}")
    if operand.array is not None:
        return operand.part(operand.array[number])
    operand = operand.holds(0, number + 1)
    return operand.element(0, number)


def _transposed(matrix: Operand) -> Operand:
    if matrix.array is not None:
        return matrix.part(matrix.array.T)
    return matrix.transpose((1, 0))


@frozen
class _Layer:
    """The node's operands with time first, and the values that its directions share."""

    kind: CellKind
    x: Operand  # [time, batch, input]
    lengths: Operand | None  # [batch, 1]
    initial: tuple[Operand, ...]  # [direction, batch, hidden]
    hidden: int
    activations: list[Activation]

    @property
    def batch(self) -> Index:
        return self.x.shape[1]


def _weights(ctx: NodeContext, layer: _Layer, number: int) -> tuple[Operand, tuple[Product, ...]]:
    """Returns the projected input, without a bias, and the matmul of each gate with the state."""
    weight, recurrence = (_direction(ctx.input(n), number, 3) for n in (1, 2))
    gates, hidden = layer.kind.gates, layer.hidden
    weight = weight.holds(0, gates * hidden)
    parts = (recurrence.slice_axis(0, n * hidden, hidden) for n in range(gates))
    products = by_matrices(_transposed(part) for part in parts)
    return layer.x @ _transposed(weight), products


def _is_quantised(ctx: NodeContext) -> bool:
    return ctx.node.op_type == "DynamicQuantizeLSTM"


def _quantised(ctx: NodeContext, layer: _Layer, number: int) -> tuple[Operand, tuple[Product, ...]]:
    """Returns the projected input and the matmul of each gate with the state; weights are int8.

    A weight is [input, gates * hidden], with one scale and zero point, or with one for each column.
    The whole input is quantised at once. Each step quantises the states of all sequences together.
    """
    weight, recurrence = (
        (_direction(ctx.input(n), number, 3), *_scale(ctx, number, scale))
        for n, scale in ((1, 8), (2, 10))
    )
    hidden = layer.hidden
    columns = (
        [o if o.rank == 0 else o.slice_axis(-1, n * hidden, hidden) for o in recurrence]
        for n in range(layer.kind.gates)
    )
    products = tuple(partial(quantised_product, matrix=gate) for gate in columns)
    return quantised_product(layer.x, weight), products


def _scale(ctx: NodeContext, number: int, first: int) -> Iterator[Operand]:
    """Yields the scale and the zero point of a direction, from input `first` and the next one."""
    for operand in (ctx.input(first), ctx.input(first + 1)):
        yield _direction(operand.ranked(1, 2), number, operand.rank)


def _cell(ctx: NodeContext, layer: _Layer, number: int) -> tuple[Cell, Operand]:
    """Returns the direction's cell and its projected input [time, batch, gates * hidden]."""
    kind, hidden = layer.kind, layer.hidden
    linear_before = ctx.flag("linear_before_reset") if ctx.node.op_type == "GRU" else True
    projected, products = (_quantised if _is_quantised(ctx) else _weights)(ctx, layer, number)
    late = None
    bias = ctx.optional(3)
    if bias:
        width = kind.gates * hidden
        two_biases = _direction(bias, number, 2).holds(0, 2 * width)
        biases = [two_biases.slice_axis(0, n * width, width) for n in range(2)]
        reset_late = ctx.node.op_type == "GRU" and linear_before
        projected, late = with_biases(projected, biases, hidden, reset_late)
    count = len(kind.activations)
    cell = Cell(
        hidden,
        products,
        late,
        tuple(layer.activations[number * count : (number + 1) * count]),
        tuple(range(kind.gates)),
        _peepholes(ctx, number, hidden) if kind is KINDS["LSTM"] else (),
        ctx.real("clip", 0.0),
        ctx.flag("input_forget") if kind is KINDS["LSTM"] else False,
        linear_before,
    )
    return cell, projected


def _peepholes(ctx: NodeContext, number: int, hidden: int) -> tuple[Operand, ...]:
    operand = ctx.optional(7)
    if not operand:
        return ()
    of_direction = _direction(operand, number, 2).holds(0, 3 * hidden)
    return tuple(of_direction.slice_axis(0, n * hidden, hidden) for n in range(3))


def _run_direction(
    ctx: NodeContext, layer: _Layer, number: int, reverse: bool
) -> tuple[Operand, ...]:
    """Runs the layer in one direction.

    Returns the hidden states of all steps [time, batch, hidden], then each state after the last
    step [batch, hidden].
    """
    cell, projected = _cell(ctx, layer, number)
    states = [_direction(initial, number, 3) for initial in layer.initial]
    return run_cell(ctx, layer.kind, cell, projected, states, layer.lengths, reverse)


def _recurrent(ctx: NodeContext, *, direction: str = "forward", layout: bool) -> Results:
    kind = KINDS[ctx.node.op_type.removeprefix("DynamicQuantize")]
    reverses = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in reverses:
        raise Refusal(f"direction is '{direction[:40]}'")
    backward = reverses[direction]
    layer = _layer(ctx, kind, len(backward), layout)
    results = [_run_direction(ctx, layer, n, reverse) for n, reverse in enumerate(backward)]
    rows = stack([r[0] for r in results], 1)
    last = [stack([r[n] for r in results], 0) for n in range(1, 1 + kind.states)]
    if layout:
        rows = rows.transpose((2, 0, 1, 3))
        last = [state.transpose((1, 0, 2)) for state in last]
    return [rows, *last]


def _layer(ctx: NodeContext, kind: CellKind, directions: int, batch_first: bool) -> _Layer:
    x, recurrence = ctx.input(0), ctx.input(2)
    if x.rank != 3 or recurrence.rank != 3 or ctx.input(1).rank != 3:
        raise Refusal("X, W and R must have three axes")
    rows, hidden = map(as_int, recurrence.shape[1:])
    if _is_quantised(ctx):
        rows, hidden = hidden, rows
    if hidden is None or rows != kind.gates * hidden or recurrence.extent(0) != directions:
        raise Refusal(f"R is {recurrence.type!r}, which fits neither its gates nor directions")
    if ctx.has("hidden_size") and ctx.integer("hidden_size") != hidden:
        raise Refusal(f"hidden_size is {ctx.integer('hidden_size')}, R is {recurrence.type!r}")
    if batch_first:
        x = x.transpose((1, 0, 2))
    shape = (const(directions), x.shape[1], const(hidden))
    initial = []
    for number in range(5, 5 + kind.states):
        state = ctx.optional(number)
        if not state:
            state = full(0.0, x.dtype, shape)
        elif batch_first:
            state = state.transpose((1, 0, 2))
        if state.ranked(3).shape[1].terms:
            state = state.sized(1, shape[1], "each sequence has a state")
        initial.append(state)
    lengths = ctx.optional(4)
    if lengths:
        lengths = lengths.cast(I64).reshape((x.shape[1], const(1)))
    activations = _activations(ctx, kind.activations, directions)
    return _Layer(kind, x, lengths, tuple(initial), hidden, activations)


CONVERTERS: Converters = {
    **{name: _recurrent for name in KINDS},
    "com.microsoft.DynamicQuantizeLSTM": _recurrent,
}
