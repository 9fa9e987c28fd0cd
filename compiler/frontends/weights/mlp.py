"""The part of a layer behind attention: an MLP, or experts of which each row uses a few."""

from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.weights.attention import DecoderRun


def mlp(context: DecoderRun, x: Operand, start: str) -> Operand:
    """Returns the result `[n, width]` of the MLP or of the experts for normalised rows `x`.

    `start` is the start of the names of their tensors.
    """
    if f"{start}_gate_inp.weight" not in context.tensors:
        return _dense(context, x, start)
    y = _experts(context, x, start)
    if f"{start}_gate_inp_shexp.weight" not in context.tensors:
        return y
    share = x @ context.tensors.vector(
        f"{start}_gate_inp_shexp.weight", context.config.width
    ).unsqueeze(1)
    return y + _dense(context, x, start, "_shexp") * share.sigmoid()


def _dense(context: DecoderRun, x: Operand, start: str, end: str = "") -> Operand:
    """Returns the result of an MLP; one tensor may hold the gate and, behind it, the other rows."""
    tensors, family = context.tensors, context.config.family
    up = tensors.matmul(x, f"{start}_up{end}")
    gate = f"{start}_gate{end}"
    if not family.gated:
        hidden = _activated(context, up)
    elif f"{gate}.weight" in tensors:
        hidden = _activated(context, tensors.matmul(x, gate, up.extent(1))) * up
    else:
        width = (up.extent(1) or 0) // 2
        hidden = _activated(context, up.slice_axis(1, 0, width)) * up.slice_axis(1, width, width)
    return tensors.matmul(hidden, f"{start}_down{end}", context.config.width)


def _activated(context: DecoderRun, x: Operand) -> Operand:
    return x.silu() if context.config.family.activation == "silu" else x.gelu(approximate="tanh")


def _experts(context: DecoderRun, x: Operand, start: str) -> Operand:
    """Returns the weighted sum of the results of each row's best experts.

    Matrices are gathered by row; `tcc.passes.moe.grouped_gemm` finds the rows that share one.
    """
    config, tensors = context.config, context.tensors
    scores = tensors.matmul(x, f"{start}_gate_inp")
    number, count, depth = scores.extent(1) or 0, config.experts, config.width
    if count > number:
        raise Refusal(f"each row uses {count} of {number} experts")
    shares = scores.softmax(axis=1)
    share, index = shares.ordered(1, count)
    if config.renormalised:
        share = share / share.sum(1, keepdims=True)
    rows = x.shape[0]

    def matmul(y: Operand, part: str, shape: tuple[int, int | None, int | None]) -> Operand:
        matrices = tensors.experts(f"{start}_{part}_exps.weight", shape).gather(index, axis=0)
        return y @ matrices.transpose((0, 1, 3, 2))

    tokens = x.reshape((rows, 1, 1, depth))
    up = matmul(tokens, "up", (number, None, depth))
    hidden = _activated(context, matmul(tokens, "gate", (number, up.extent(3), depth))) * up
    outputs = matmul(hidden, "down", (number, depth, up.extent(3)))
    return (outputs * share.reshape((rows, count, 1, 1))).sum(1).reshape((rows, depth))
