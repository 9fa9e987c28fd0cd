"""Converters of interpolation, and of sampling at positions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tcc.frontends.emit import constant, family
from tcc.frontends.extents import widened_taps
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import CallContext, Converters, ResultShape, of_axes
from tcc.ir.index import Index, as_int
from tcc.zipped import zip_equal

_PADDING = ("zeros", "border", "reflection")
_MODES = ("linear", "nearest", "cubic")


def axis_scales(ctx: CallContext, axes: int) -> list[float | None]:
    """Returns the scale that the call gives for each spatial axis; None for an axis without one."""
    if ctx.has("scale_factors"):
        return [float(v) for v in ctx.arguments["scale_factors"]]
    names = [n for n in ctx.arguments if n.startswith("scales")]
    return [ctx.real(n) if ctx.has(n) else None for n in names] or [None] * axes


def interpolation(
    ctx: CallContext,
    x: Operand,
    sizes: Sequence[Index],
    scales: Sequence[float | None],
    mode: str,
    smooth: bool,
) -> dict[str, Any]:
    """Returns the attributes of `resize` for the spatial axes of `x`.

    `scales` are those of the call.  A `smooth` kernel widens where the image shrinks.
    """
    corners = ctx.flag("align_corners")
    if smooth and corners:
        raise Refusal("align_corners together with antialias is not supported")
    informative = [] if corners else _informative_scales(sizes[2:], x.shape[2:], scales)
    all_scales = (1.0, 1.0, *(informative or [None] * (x.rank - 2)))
    linear = "kept_half_pixel" if mode == "linear" else "half_pixel"
    return {
        "sizes": tuple(sizes),
        "scales": all_scales,
        "mode": mode,
        "coordinate_mode": "align_corners" if corners else linear,
        "cubic_coeff_a": -0.5 if smooth else -0.75,
        "exclude_outside": smooth,
        "taps": widened_taps(x, sizes, all_scales, 2 if mode == "cubic" else 1) if smooth else None,
    }


@family
def _upsample(mode: str, smooth: bool, ctx: CallContext, x: Operand, shape: ResultShape) -> Operand:
    attributes = interpolation(ctx, x, shape, axis_scales(ctx, x.rank - 2), mode, smooth)
    return x.resize(**attributes)


@family
def _nearest(exact: bool, ctx: CallContext, x: Operand, shape: ResultShape) -> Operand:
    """Resizes to nearest neighbours, with positions at pixel centres if `exact`.

    torch rounds a product in f32 down, which may give the position before that of the exact
    quotient. If sizes are constant and these positions differ, a constant holds torch's positions.
    """
    scales = axis_scales(ctx, x.rank - 2)
    informative = _informative_scales(shape[2:], x.shape[2:], scales)
    for axis, scale in enumerate(informative, 2):
        n, m = x.extent(axis), as_int(shape[axis])
        if not n or not m:
            continue
        places = nearest_places(n, m, scale, exact)
        if scale is not None or (places != _exact_places(n, m, exact)).any():
            x = x.gather(constant(places), axis=axis)
            informative[axis - 2] = None
    return x.resize(
        sizes=shape,
        scales=(1.0, 1.0, *informative),
        mode="nearest",
        coordinate_mode="half_pixel" if exact else "asymmetric",
        nearest_mode="round_prefer_ceil" if exact else "floor",
    )


def nearest_places(n: int, m: int, scale: float | None, exact: bool) -> NDArray[np.int64]:
    """Returns torch's source positions of `m` elements, which are read from `n` elements."""
    step = np.float32(n) / np.float32(m) if scale is None else np.float32(1 / scale)
    at = np.arange(m, dtype=np.float32) + np.float32(0.5 if exact else 0)
    return np.minimum((at * step).astype(np.int64), n - 1)


def _exact_places(n: int, m: int, exact: bool) -> NDArray[np.int64]:
    return (2 * np.arange(m) + exact) * n // (2 * m)


def _informative_scales(
    sizes: Sequence[Index], extents: Sequence[Index], scales: Sequence[float | None]
) -> list[float | None]:
    """Returns the scale of each spatial axis; None if the op needs no scale (`_follows`)."""
    return [None if _follows(o, i, s) else s for o, i, s in zip_equal(sizes, extents, scales)]


def _follows(size: Index, extent: Index, scale: float | None) -> bool:
    """True if the op needs no scale along an axis: `scale` is None, or `size == extent * scale`.

    `size` belongs to the result, and `extent` to the operand. A symbolic size needs its scale.
    """
    out, dim = as_int(size), as_int(extent)
    return scale is None or (out is not None and dim is not None and out == dim * scale)


def _grid_sample(
    x: Operand,
    interpolation_mode: int,
    padding_mode: int,
    grid: Operand,
    align_corners: bool,
) -> Operand:
    return x.grid_sample(
        grid,
        mode=_MODES[interpolation_mode],
        padding_mode=_PADDING[padding_mode],
        align_corners=align_corners,
    )


# The mode of each interpolation, and True if it is antialiased.  `gradients.py` converts the
# operators of their gradients.
INTERPOLATIONS = {
    "upsample_linear1d": ("linear", False),
    "upsample_bilinear2d": ("linear", False),
    "upsample_trilinear3d": ("linear", False),
    "upsample_bicubic2d": ("cubic", False),
    "_upsample_bilinear2d_aa": ("linear", True),
    "_upsample_bicubic2d_aa": ("cubic", True),
}

CONVERTERS: Converters = {
    **of_axes("upsample_nearest{}d", lambda _: _nearest(False)),
    **of_axes("_upsample_nearest_exact{}d", lambda _: _nearest(True)),
    **{name: _upsample(mode, smooth) for name, (mode, smooth) in INTERPOLATIONS.items()},
    "grid_sampler_2d": _grid_sample,
    "grid_sampler_3d": _grid_sample,
}
