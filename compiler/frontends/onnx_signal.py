"""Converters of Fourier transforms and what goes with them."""

from __future__ import annotations

from collections.abc import Sequence

from tcc.frontends.onnx_context import Converter, NodeContext
from tcc.frontends.onnx_scope import Operand
from tcc.ir.index import as_int, const
from tcc.ir.types import F32

Results = Sequence["Operand | None"]


def _dft(ctx: NodeContext) -> Results:
    x = ctx.input(0)
    if ctx.opset >= 20:
        given = ctx.static_ints(2, "the axis") if ctx.optional(2) is not None else (-2,)
    else:
        given = (ctx.integer("axis", 1),)
    axis = ctx.axis(given[0], x.rank)
    inverse, onesided = ctx.flag("inverse"), ctx.flag("onesided")
    wanted = ctx.optional(1)
    if wanted is not None:
        (length,) = ctx.sizes(wanted, "dft_length")
    elif inverse and onesided:
        length = (x.shape[axis] - 1) * 2
    else:
        length = x.shape[axis]
    return [ctx.emit("dft", x, axis=axis, length=length, inverse=inverse, onesided=onesided)]


def _stft(ctx: NodeContext) -> Results:
    x, window = ctx.input(0), ctx.optional(2)
    (step,) = ctx.static_ints(1, "frame_step")
    if ctx.optional(3) is not None:
        (length,) = ctx.static_ints(3, "frame_length")
    else:
        size = None if window is None else as_int(window.shape[0])
        if size is None:
            raise ctx.fail("neither a window nor frame_length says how long a frame is")
        length = size
    onesided = ctx.flag("onesided", True)
    if x.rank == 3 and x.shape[2] is const(2) and onesided:
        raise ctx.fail("onesided spectra belong to real signals")
    operands = [x] if window is None else [x, window]
    return ctx.emit_all("stft", operands, step=step, length=length, onesided=onesided)


def _mel_weights(ctx: NodeContext) -> Results:
    bins, length, rate = (ctx.static_ints(n, "a mel parameter")[0] for n in range(3))
    lower, upper = (float(ctx.static(n, "a mel edge").reshape(())) for n in (3, 4))
    return [
        ctx.emit(
            "mel_weight_matrix",
            bins=bins,
            length=length,
            sample_rate=rate,
            lower=lower,
            upper=upper,
            to=ctx.dtype("output_datatype", F32),
        )
    ]


CONVERTERS: dict[tuple[str, str], Converter] = {
    ("", "DFT"): _dft,
    ("", "STFT"): _stft,
    ("", "MelWeightMatrix"): _mel_weights,
}
