"""Converters of LSTM, GRU and RNN: one matmul for the inputs of all steps, then a scan over time.

The scan's body is h R^T plus the step's projected input, gate by gate, so that a kernel can have
one unit of all gates in hand, and the new state.  Layout, direction, peepholes, clipping, coupled
gates and lengths per sequence are resolved here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tcc.frontends.onnx_context import Converter, NodeContext
from tcc.frontends.onnx_scope import Operand
from tcc.ir.index import Index, as_int, const
from tcc.ir.types import I64, TensorType

Results = Sequence["Operand | None"]
Activation = Callable[[NodeContext, Operand], Operand]
Step = Callable[["_Cell", NodeContext, Operand, Sequence[Operand]], tuple[Operand, ...]]

# ---- activations ---------------------------------------------------------------------------------


def _affine(ctx: NodeContext, x: Operand, scale: float, shift: float) -> Operand:
    scaled = ctx.emit("mul", x, ctx.filled(scale, x.dtype))
    return ctx.emit("add", scaled, ctx.filled(shift, x.dtype))


def _scaled_tanh(ctx: NodeContext, x: Operand, alpha: float, beta: float) -> Operand:
    inner = ctx.emit("tanh", ctx.emit("mul", x, ctx.filled(beta, x.dtype)))
    return ctx.emit("mul", inner, ctx.filled(alpha, x.dtype))


_PLAIN = ("tanh", "sigmoid", "relu", "softsign", "softplus")
_ALPHA = {"leakyrelu": ("leaky_relu", 0.01), "elu": ("elu", 1.0)}
_ALPHA["thresholdedrelu"] = ("thresholded_relu", 1.0)
_ALPHA_BETA = {"affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5)}


def _activations(ctx: NodeContext, defaults: Sequence[str], directions: int) -> list[Activation]:
    """The activation functions, direction by direction; alphas and betas are taken in order."""
    own = ctx.texts("activations") if ctx.has("activations") else ()
    names = own or tuple(defaults) * directions
    if len(names) != len(defaults) * directions:
        raise ctx.fail(f"{len(names)} activations; {len(defaults) * directions} are due")
    alphas = iter(ctx.reals("activation_alpha"))
    betas = iter(ctx.reals("activation_beta"))
    return [_activation(ctx, name.lower(), alphas, betas) for name in names]


def _activation(
    ctx: NodeContext, name: str, alphas: Iterator[float], betas: Iterator[float]
) -> Activation:
    if name in _PLAIN:
        return lambda inner, x: inner.emit(name, x)
    if name in _ALPHA:
        op, default = _ALPHA[name]
        only = next(alphas, default)
        return lambda inner, x: inner.emit(op, x, alpha=only)
    if name not in _ALPHA_BETA:
        raise ctx.fail(f"activation '{name[:40]}' is not known")
    alpha, beta = _ALPHA_BETA[name]
    alpha, beta = next(alphas, alpha), next(betas, beta)
    if name == "hardsigmoid":
        return lambda inner, x: inner.emit("hard_sigmoid", x, alpha=alpha, beta=beta)
    function = _affine if name == "affine" else _scaled_tanh
    return lambda inner, x: function(inner, x, alpha, beta)


# ---- one direction -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """What a step needs besides its input and states; operands lie outside the body."""

    hidden: int
    recurrent: tuple[Operand, ...]  # R^T of each gate
    bias: Operand | None  # of the recurrent part, where it cannot be added beforehand
    peepholes: tuple[Operand, ...]
    activations: tuple[Activation, ...]
    clip: float
    coupled: bool
    linear_before: bool

    def activate(self, ctx: NodeContext, number: int, x: Operand) -> Operand:
        if self.clip:
            low, high = ctx.filled(-self.clip, x.dtype), ctx.filled(self.clip, x.dtype)
            x = ctx.emit("clip", x, low, high)
        return self.activations[number](ctx, x)

    def product(self, ctx: NodeContext, number: int, h: Operand) -> Operand:
        return ctx.emit("matmul", h, self.recurrent[number])

    def enters(self, ctx: NodeContext, number: int, x: Operand) -> Operand:
        """The gate's part of the projected input."""
        return ctx.slice_axis(x, x.rank - 1, number * self.hidden, self.hidden)

    def gate(self, ctx: NodeContext, number: int, x: Operand, h: Operand) -> Operand:
        """What the gate's activation is applied to."""
        return ctx.emit("add", self.enters(ctx, number, x), self.product(ctx, number, h))


def _rnn_step(
    cell: _Cell, ctx: NodeContext, x: Operand, states: Sequence[Operand]
) -> tuple[Operand, ...]:
    return (cell.activate(ctx, 0, cell.gate(ctx, 0, x, states[0])),)


def _gru_step(
    cell: _Cell, ctx: NodeContext, x: Operand, states: Sequence[Operand]
) -> tuple[Operand, ...]:
    h = states[0]
    update = cell.activate(ctx, 0, cell.gate(ctx, 0, x, h))
    reset = cell.activate(ctx, 0, cell.gate(ctx, 1, x, h))
    if cell.linear_before:
        inner = cell.product(ctx, 2, h)
        if cell.bias is not None:
            inner = ctx.emit("add", inner, cell.bias)
        inner = ctx.emit("mul", reset, inner)
    else:
        inner = cell.product(ctx, 2, ctx.emit("mul", reset, h))
    hidden = cell.activate(ctx, 1, ctx.emit("add", cell.enters(ctx, 2, x), inner))
    rest = ctx.emit("sub", ctx.filled(1.0, x.dtype), update)
    return (ctx.emit("add", ctx.emit("mul", rest, hidden), ctx.emit("mul", update, h)),)


def _lstm_step(
    cell: _Cell, ctx: NodeContext, x: Operand, states: Sequence[Operand]
) -> tuple[Operand, ...]:
    h, c = states

    def gate(number: int, peephole: int | None, state: Operand) -> Operand:
        value = cell.gate(ctx, number, x, h)
        if peephole is not None and cell.peepholes:
            value = ctx.emit("add", value, ctx.emit("mul", cell.peepholes[peephole], state))
        return value

    enter = cell.activate(ctx, 0, gate(0, 0, c))
    if cell.coupled:
        forget = ctx.emit("sub", ctx.filled(1.0, x.dtype), enter)
    else:
        forget = cell.activate(ctx, 0, gate(2, 2, c))
    candidate = cell.activate(ctx, 1, gate(3, None, c))
    new_c = ctx.emit("add", ctx.emit("mul", forget, c), ctx.emit("mul", enter, candidate))
    leave = cell.activate(ctx, 0, gate(1, 1, new_c))
    return ctx.emit("mul", leave, cell.activations[2](ctx, new_c)), new_c


@dataclass(frozen=True, slots=True)
class _Kind:
    gates: int
    states: int
    activations: tuple[str, ...]
    step: Step


_KINDS = {
    "RNN": _Kind(1, 1, ("Tanh",), _rnn_step),
    "GRU": _Kind(3, 1, ("Sigmoid", "Tanh"), _gru_step),
    "LSTM": _Kind(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step),
}


def _direction(ctx: NodeContext, operand: Operand, number: int) -> Operand:
    """The part of a weight that belongs to one direction."""
    if operand.array is not None:
        return ctx.part_of(operand, operand.array[number])
    return ctx.reshape(ctx.slice_axis(operand, 0, number, 1), operand.shape[1:])


def _transposed(ctx: NodeContext, matrix: Operand) -> Operand:
    if matrix.array is not None:
        return ctx.part_of(matrix, matrix.array.T)
    return ctx.transpose(matrix, (1, 0))


@dataclass(frozen=True, slots=True)
class _Layer:
    """The node's operands with time first, and what its directions share."""

    kind: _Kind
    x: Operand  # [time, batch, input]
    lengths: Operand | None  # [batch, 1]
    initial: tuple[Operand, ...]  # [direction, batch, hidden]
    hidden: int
    activations: list[Activation]

    @property
    def time(self) -> Index:
        return self.x.shape[0]

    @property
    def batch(self) -> Index:
        return self.x.shape[1]


def _cell(ctx: NodeContext, layer: _Layer, number: int) -> tuple[_Cell, Operand]:
    """The direction's cell and its projected input [time, batch, gates * hidden]."""
    kind, hidden = layer.kind, layer.hidden
    weight, recurrence = (_direction(ctx, ctx.input(n), number) for n in (1, 2))
    linear_before = ctx.flag("linear_before_reset") if ctx.node.op_type == "GRU" else True
    projected = ctx.emit("matmul", layer.x, _transposed(ctx, weight))
    late = None
    given = ctx.optional(3)
    if given is not None:
        both = _direction(ctx, given, number)
        width = kind.gates * hidden
        own = ctx.slice_axis(both, 0, 0, width)
        other = ctx.slice_axis(both, 0, width, width)
        if ctx.node.op_type == "GRU" and linear_before:
            late = ctx.slice_axis(other, 0, 2 * hidden, hidden)
            zero = ctx.expand(ctx.filled(0.0, own.dtype), (const(hidden),))
            other = ctx.concat([ctx.slice_axis(other, 0, 0, 2 * hidden), zero], 0)
        projected = ctx.emit("add", projected, ctx.emit("add", own, other))
    parts = [ctx.slice_axis(recurrence, 0, n * hidden, hidden) for n in range(kind.gates)]
    count = len(kind.activations)
    cell = _Cell(
        hidden,
        tuple(_transposed(ctx, part) for part in parts),
        late,
        _peepholes(ctx, number, hidden),
        tuple(layer.activations[number * count : (number + 1) * count]),
        ctx.real("clip", 0.0),
        ctx.flag("input_forget") if ctx.node.op_type == "LSTM" else False,
        linear_before,
    )
    return cell, projected


def _peepholes(ctx: NodeContext, number: int, hidden: int) -> tuple[Operand, ...]:
    given = ctx.optional(7) if ctx.node.op_type == "LSTM" else None
    if given is None:
        return ()
    own = _direction(ctx, given, number)
    return tuple(ctx.slice_axis(own, 0, n * hidden, hidden) for n in range(3))


def _run_direction(
    ctx: NodeContext, layer: _Layer, number: int, reverse: bool
) -> tuple[Operand, ...]:
    """(rows [time, batch, hidden], last states [batch, hidden]...) of one direction."""
    cell, projected = _cell(ctx, layer, number)
    states = [_direction(ctx, initial, number) for initial in layer.initial]
    scanned = [projected]
    if layer.lengths is not None:
        scanned.append(_steps(ctx, layer.time))
    scope = ctx.body_scope("step" if not reverse else "step_back")
    inner = ctx.inside(scope)
    old = [scope.wrap(scope.builder.input("state", state.type)) for state in states]
    x = scope.wrap(scope.builder.input("x", _row_type(projected)))
    new = layer.kind.step(cell, inner, x, old)
    row = new[0]
    if layer.lengths is not None:
        t = scope.wrap(scope.builder.input("t", _row_type(scanned[1])))
        runs = inner.emit("less", t, layer.lengths)
        row = inner.emit("where", runs, row, inner.filled(0.0, row.dtype))
        new = tuple(
            inner.emit("where", runs, after, before) for after, before in zip(new, old, strict=True)
        )
    body = scope.builder.finish(o.value for o in (*new, row))
    results = ctx.emit_all(
        "scan",
        [*states, *scanned],
        body=body,
        num_scan_inputs=len(scanned),
        input_axes=(0,) * len(scanned),
        input_reverse=(reverse,) * len(scanned),
        output_axes=(0,),
        output_reverse=(reverse,),
    )
    return (results[-1], *results[:-1])


def _row_type(operand: Operand) -> TensorType:
    return TensorType(operand.dtype, operand.shape[1:])


def _steps(ctx: NodeContext, time: Index) -> Operand:
    zero, one = ctx.filled(0, I64), ctx.filled(1, I64)
    return ctx.emit("range", zero, ctx.size_scalar(time), one, size=time)


def _recurrent(ctx: NodeContext) -> Results:
    kind = _KINDS[ctx.node.op_type]
    direction = ctx.text("direction", "forward")
    reverses = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in reverses:
        raise ctx.fail(f"direction is '{direction[:40]}'")
    backward = reverses[direction]
    batch_first = ctx.flag("layout") if ctx.opset >= 14 else False
    layer = _layer(ctx, kind, len(backward), batch_first)
    results = [_run_direction(ctx, layer, n, reverse) for n, reverse in enumerate(backward)]
    rows = ctx.concat(
        [
            ctx.reshape(r[0], (layer.time, const(1), layer.batch, const(layer.hidden)))
            for r in results
        ],
        1,
    )
    last = [
        ctx.concat(
            [ctx.reshape(r[n], (const(1), layer.batch, const(layer.hidden))) for r in results], 0
        )
        for n in range(1, 1 + kind.states)
    ]
    if batch_first:
        rows = ctx.transpose(rows, (2, 0, 1, 3))
        last = [ctx.transpose(state, (1, 0, 2)) for state in last]
    return [rows, *last]


def _layer(ctx: NodeContext, kind: _Kind, directions: int, batch_first: bool) -> _Layer:
    x, recurrence = ctx.input(0), ctx.input(2)
    if x.rank != 3 or recurrence.rank != 3 or ctx.input(1).rank != 3:
        raise ctx.fail("X, W and R must have three axes")
    hidden = as_int(recurrence.shape[2])
    rows = as_int(recurrence.shape[1])
    if hidden is None or rows != kind.gates * hidden or as_int(recurrence.shape[0]) != directions:
        raise ctx.fail(f"R is {recurrence.type!r}, which fits neither its gates nor directions")
    if ctx.has("hidden_size") and ctx.integer("hidden_size") != hidden:
        raise ctx.fail(f"hidden_size is {ctx.integer('hidden_size')}, R is {recurrence.type!r}")
    if batch_first:
        x = ctx.transpose(x, (1, 0, 2))
    shape = (const(directions), x.shape[1], const(hidden))
    initial = []
    for number in range(5, 5 + kind.states):
        state = ctx.optional(number)
        if state is None:
            state = ctx.expand(ctx.filled(0.0, x.dtype), shape)
        elif batch_first:
            state = ctx.transpose(state, (1, 0, 2))
        initial.append(ctx.agree(state, shape))
    lengths = ctx.optional(4)
    if lengths is not None:
        lengths = ctx.reshape(ctx.cast(lengths, I64), (x.shape[1], const(1)))
    activations = _activations(ctx, kind.activations, directions)
    return _Layer(kind, x, lengths, tuple(initial), hidden, activations)


CONVERTERS: dict[tuple[str, str], Converter] = {("", name): _recurrent for name in _KINDS}
