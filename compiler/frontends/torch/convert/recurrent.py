"""Converters of LSTM, GRU and RNN layers, from torch's layout to the cells of
`frontends.recurrent`."""

from collections.abc import Sequence

from tcc.frontends.emit import concat, family, stack
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.recurrent import KINDS, Activation, Cell, by_matrices, run_cell, with_biases
from tcc.frontends.torch.context import CallContext, Converters
from tcc.frontends.torch.convert.movement import select
from tcc.ir.index import const
from tcc.zipped import zip_equal

# For each gate in the order of `recurrent.KINDS`: its position among torch's gates.
_PLACES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2)}


def _emitted(op: str) -> Activation:
    return lambda x: x.emit(op)


def _direction(
    name: str, function: str, x: Operand, weights: Sequence[Operand]
) -> tuple[Cell, Operand]:
    """Returns the cell of one direction of a layer, and its projected input.

    `name` is the kind of layer, such as "LSTM". `function` is the op of the activation "Tanh".
    """
    kind, places, (weight, recurrence, *biases) = KINDS[name], _PLACES[name], weights
    hidden = recurrence.extent(1)
    if hidden is None or recurrence.extent(0) != kind.gates * hidden:
        raise Refusal("layers with a projection are not supported")
    projected, late_bias = x @ weight.swap_axes(0, 1), None
    if biases:
        projected, late_bias = with_biases(projected, biases, hidden, name == "GRU")
    parts = [recurrence.slice_axis(0, place * hidden, hidden) for place in places]
    functions = [function if f == "Tanh" else f.lower() for f in kind.activations]
    cell = Cell(
        hidden,
        by_matrices(part.swap_axes(0, 1) for part in parts),
        late_bias,
        tuple(map(_emitted, functions)),
        places,
    )
    return cell, projected


@family
def _recurrent(
    name: str,
    function: str,
    ctx: CallContext,
    x: Operand,
    params: list[Operand],
    num_layers: int,
    bidirectional: bool,
    has_biases: bool,
    train: bool,
    dropout: float,
    batch_first: bool,
) -> Sequence[Operand]:
    kind = KINDS[name]
    hx = ctx.arguments["hx"]
    initial = [ctx.as_operand(v) for v in (hx if isinstance(hx, list) else [hx])]
    directions = 1 + bidirectional
    width = 4 if has_biases else 2
    if train and dropout != 0 and num_layers > 1:
        raise Refusal("it draws random numbers", "call model.eval() before the export")
    if len(params) != num_layers * directions * width or len(initial) != kind.states or x.rank != 3:
        raise Refusal("layers with a projection are not supported")
    x = x.swap_axes(0, 1) if batch_first else x
    last: list[tuple[Operand, ...]] = []
    for layer in range(num_layers):
        rows = []
        for direction in range(directions):
            number = layer * directions + direction
            direction_weights = params[number * width : (number + 1) * width]
            cell, projected = _direction(name, function, x, direction_weights)
            states = [select(state, 0, const(number)) for state in initial]
            outputs = run_cell(ctx, kind, cell, projected, states, None, direction == 1)
            rows.append(outputs[0])
            last.append(outputs[1:])
        x = concat(rows, 2)
    ends = [stack(final_states, 0) for final_states in zip_equal(*last)]
    return [x.swap_axes(0, 1) if batch_first else x, *ends]


CONVERTERS: Converters = {
    "lstm.input": _recurrent("LSTM", "tanh"),
    "gru.input": _recurrent("GRU", "tanh"),
    "rnn_tanh.input": _recurrent("RNN", "tanh"),
    "rnn_relu.input": _recurrent("RNN", "relu"),
}
