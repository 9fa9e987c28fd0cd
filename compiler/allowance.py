"""How far an artifact's outputs may lie from those of a reference that rounds as it does.

The reference runs on draws that are always the same, and again with its weights and inputs changed
by a few roundings: how far that moves an output is its noise.  An output is right where its errors
are no larger than a multiple of the noise: the largest error, the root mean square of all, and the
mean of each row along a short axis.  A fault shifts means, which rounding hardly does.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from tcc.ir.op import Array
from tcc.record import record

# What is measured, and how many times its noise is allowed.
_NAMES = ("largest error", "root mean square error", "mean error of a row")
_FACTORS = (8.0, 4.0, 20.0)
# Always allowed, of the largest value: functions of elements differ by some roundings.
_LEAST, _LEAST_ROW = 2.0**-15, 2.0**-18

# Draws of one shape and kind are measured together.
_Group = tuple[object, ...]


@record
class Allowance:
    """The most that each measure of an output's errors may be, by the shape and kind of draws;
    `scale` is the largest magnitude of the output in the draws that this was found with."""

    most: Mapping[_Group, Array]
    scale: float

    @property
    def share(self) -> float:
        """The largest error that is allowed anywhere, relative to the largest value."""
        return max(float(most[0]) for most in self.most.values()) / self.scale


def allowance(
    wants: Sequence[Array], moved: Iterable[Sequence[Array]], kinds: Sequence[float], least: float
) -> Allowance:
    """The allowance of an output that is `wants` in draws of some `kinds`, and each of `moved` with
    other roundings; a relative error of `least` is always allowed."""
    scale = _scale(wants)
    floor = scale if wants[0].dtype.kind == "f" else 0.0
    runs = [_measured(gots, wants, kinds) for gots in moved]
    most = {}
    for group in runs[0]:
        values, spreads = (np.stack(each) for each in zip(*(r[group] for r in runs), strict=True))
        # Some draws tell little of one row's mean: it is a share of the row's errors.
        typical = np.sqrt(np.mean(np.square(spreads), 0))
        means, errors = np.square(values[:, 2:]), np.square(typical[2:])
        typical[2:] *= np.sqrt(np.sum(means) / len(runs) / (np.sum(errors) or 1))
        typical[:2] = values[:, :2].max(0)
        factors = np.array([_FACTORS[min(n, 2)] for n in range(typical.size)])
        floors = np.where(factors == _FACTORS[2], max(least, _LEAST_ROW), max(least, _LEAST))
        most[group] = typical * factors + floor * floors
    return Allowance(most, scale)


def judged(
    gots: Sequence[Array], wants: Sequence[Array], kinds: Sequence[float], allowed: Allowance
) -> tuple[float, str]:
    """The largest error of an output in draws of some `kinds`, relative to its largest value, and
    which measure is more than `allowed`, if one is."""
    widest = np.max([most[:2] for most in allowed.most.values()], 0)
    unit = max(_scale(wants), allowed.scale)
    worst, error, why = 1.0, 0.0, ""
    for group, (values, _) in _measured(gots, wants, kinds).items():
        error = max(error, float(values[0]) / unit)
        most = allowed.most.get(group, widest) / allowed.scale
        shares = np.abs(values)[: most.size] / unit
        ratios = shares / np.maximum(most, np.finfo(float).tiny)
        at = int(np.argmax(ratios))
        if ratios[at] > worst:
            worst = ratios[at]
            why = f"{_NAMES[min(at, 2)]} {shares[at]:.1e}, {most[at]:.1e} allowed"
    return error, why


def _scale(arrays: Sequence[Array]) -> float:
    """The largest finite magnitude; 1 for other than floats, and for zeros."""
    if arrays[0].dtype.kind != "f":
        return 1.0
    return max(float(np.max(np.abs(a), initial=0, where=np.isfinite(a))) for a in arrays) or 1.0


def _measured(
    gots: Sequence[Array], wants: Sequence[Array], kinds: Sequence[float]
) -> dict[_Group, tuple[Array, Array]]:
    """The measures of each group's errors, and the same with the root mean square of each row in
    the place of its mean.  Rows lie along each axis that has no more of them than elements in one.
    """
    found: dict[_Group, list[Array]] = {}
    for got, want, kind in zip(gots, wants, kinds, strict=True):
        found.setdefault((want.shape, kind), [])
        if got.shape == want.shape and want.size:
            found[want.shape, kind].append(_errors(got, want))
    return {group: _measures(errors) for group, errors in found.items()}


def _measures(errors: Sequence[Array]) -> tuple[Array, Array]:
    if not errors:
        return np.zeros(2), np.zeros(2)
    shape = errors[0].shape
    short = [n for n, size in enumerate(shape) if size > 1 and size * size <= errors[0].size]
    others = [tuple(n for n in range(len(shape)) if n != axis) for axis in short]
    squares = [np.square(off) for off in errors]
    first = [max(np.max(np.abs(off)) for off in errors), np.sqrt(np.mean([*map(np.mean, squares)]))]
    means = [np.mean([np.mean(off, axes) for off in errors], 0) for axes in others]
    sizes = [np.sqrt(np.mean([np.mean(off, axes) for off in squares], 0)) for axes in others]
    return np.concatenate([first, *means]), np.concatenate([first, *sizes])


def _errors(got: Array, want: Array) -> Array:
    """Differences in f64, 0 where one is not finite; of other than floats 1 where they differ."""
    if want.dtype.kind != "f":
        return np.asarray(got != want, np.float64)
    with np.errstate(invalid="ignore"):
        off = got.astype(np.float64) - want
    return np.where(np.isfinite(off), off, 0)
