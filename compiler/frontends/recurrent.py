"""Recurrent layers of both frameworks: one direction as a scan over time.

One matmul projects the inputs of all steps in advance.  The scan's body adds h R^T to the step's
projected input, gate by gate, so that a kernel can compute one hidden unit of all gates, and then
its new state.
"""

from collections.abc import Callable, Iterable, Sequence

from tcc.frontends.emit import Emitter, concat, counted, full, scan
from tcc.frontends.operand import Operand
from tcc.frozen import frozen
from tcc.ir.types import TensorType
from tcc.zipped import zip_equal

Activation = Callable[[Operand], Operand]
Product = Callable[[Operand], Operand]
Step = Callable[["Cell", Operand, Sequence[Operand]], tuple[Operand, ...]]


@frozen
class Cell:
    """The parameters of a step: all but its input and states.

    Operands among the parameters are defined outside of the scan's body.
    """

    hidden: int
    products: tuple[Product, ...]  # for each gate: multiplies the state with the gate's matrix
    bias: Operand | None  # the part of the state's bias that a reset gate multiplies
    activations: tuple[Activation, ...]
    places: tuple[int, ...]  # for each gate: the index of its columns' block in the projected input
    peepholes: tuple[Operand, ...] = ()
    clip: float = 0.0
    coupled: bool = False
    linear_before: bool = True

    def activate(self, number: int, x: Operand) -> Operand:
        if self.clip:
            x = x.clip(-self.clip, self.clip)
        return self.activations[number](x)

    def enters(self, number: int, x: Operand) -> Operand:
        """Returns the part of the projected input that belongs to a gate."""
        return x.slice_axis(-1, self.places[number] * self.hidden, self.hidden)

    def gate(self, number: int, x: Operand, h: Operand) -> Operand:
        """Returns the input of the gate's activation."""
        return self.enters(number, x) + self.products[number](h)


def by_matrices(matrices: Iterable[Operand]) -> tuple[Product, ...]:
    """Returns for each of `matrices` (R^T of a gate) a function that multiplies a state with it."""

    def multiply_by(matrix: Operand) -> Product:
        return lambda h: h @ matrix

    return tuple(map(multiply_by, matrices))


def with_biases(
    projected: Operand, biases: Sequence[Operand], hidden: int, reset_late: bool
) -> tuple[Operand, Operand | None]:
    """Adds the biases of the input and of the state, [gates * hidden], to the projected input.

    Returns the sum, and the part of the state's bias that cannot be added in advance, or None. With
    `reset_late` (GRU) this part is the bias of the third gate: the reset gate multiplies the sum of
    the state's matmul and this bias.
    """
    input_bias, state_bias = biases
    late_bias = None
    if reset_late:
        late_bias = state_bias.slice_axis(0, 2 * hidden, hidden)
        zero = full(0.0, state_bias.dtype, (hidden,))
        state_bias = concat([state_bias.slice_axis(0, 0, 2 * hidden), zero], 0)
    return projected + (input_bias + state_bias), late_bias


def _rnn_step(cell: Cell, x: Operand, states: Sequence[Operand]) -> tuple[Operand, ...]:
    return (cell.activate(0, cell.gate(0, x, states[0])),)


def _gru_step(cell: Cell, x: Operand, states: Sequence[Operand]) -> tuple[Operand, ...]:
    h = states[0]
    update = cell.activate(0, cell.gate(0, x, h))
    reset = cell.activate(0, cell.gate(1, x, h))
    if cell.linear_before:
        inner = cell.products[2](h)
        if cell.bias:
            inner = inner + cell.bias
        inner = reset * inner
    else:
        inner = cell.products[2](reset * h)
    hidden = cell.activate(1, cell.enters(2, x) + inner)
    keep = 1.0 - update
    return (keep * hidden + update * h,)


def _lstm_step(cell: Cell, x: Operand, states: Sequence[Operand]) -> tuple[Operand, ...]:
    h, c = states

    def gate(number: int, peephole: int | None, state: Operand) -> Operand:
        value = cell.gate(number, x, h)
        if peephole is not None and cell.peepholes:
            value = value + cell.peepholes[peephole] * state
        return value

    enter = cell.activate(0, gate(0, 0, c))
    forget = 1.0 - enter if cell.coupled else cell.activate(0, gate(2, 2, c))
    candidate = cell.activate(1, gate(3, None, c))
    new_c = forget * c + enter * candidate
    leave = cell.activate(0, gate(1, 1, new_c))
    return leave * cell.activations[2](new_c), new_c


@frozen
class CellKind:
    gates: int
    states: int
    activations: tuple[str, ...]
    step: Step


KINDS = {
    "RNN": CellKind(1, 1, ("Tanh",), _rnn_step),
    "GRU": CellKind(3, 1, ("Sigmoid", "Tanh"), _gru_step),
    "LSTM": CellKind(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step),
}


def run_cell(
    ctx: Emitter,
    kind: CellKind,
    cell: Cell,
    projected: Operand,
    states: Sequence[Operand],
    lengths: Operand | None,
    reverse: bool,
) -> tuple[Operand, ...]:
    """Runs a recurrent layer in one direction.

    Returns the hidden states of all steps [time, batch, hidden], then each state after the last
    step [batch, hidden]. `lengths` [batch, 1] has the number of steps of each sequence. In steps
    beyond its length, the returned hidden states of a sequence are zero, and its states do not
    change.
    """
    scanned = [projected]
    if lengths:
        scanned.append(counted(projected.shape[0]))
    scope = ctx.scope.body("step" if not reverse else "step_back")
    old = [scope.input("state", state.type) for state in states]
    x = scope.input("x", _row_type(projected))
    with ctx.inside(scope).writing():
        new = kind.step(cell, x, old)
        row = new[0]
        if lengths:
            t = scope.input("t", _row_type(scanned[1]))
            is_active = t.less(lengths)
            row = is_active.select(row, 0.0)
            new = tuple(is_active.select(*pair) for pair in zip_equal(new, old))
    body = scope.builder.finish(o.value for o in (*new, row))
    results = scan(states, scanned, body, (reverse,) * len(scanned), (reverse,))
    return (results[-1], *results[:-1])


def _row_type(operand: Operand) -> TensorType:
    return TensorType(operand.dtype, operand.shape[1:])
