"""Rounds the operands of contractions as an artifact does; the references of all frameworks use
it."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

import numpy as np
from tcc.frozen import frozen
from tcc.ir.op import Array
from tcc.options import WEIGHTS
from tcc.passes.quantize.quantize_weights import as_stored

# The relative size of a perturbation of weights: eight times the error that another order of
# summation causes.
_CHANGE = 2.0**-20
# The largest relative error of one rounding.
_STEPS = {"bf16": 2.0**-9, "f16": 2.0**-12, "tf32": 2.0**-12}
_STORED = ("bf16", "f16", *WEIGHTS)
_BITS = {"bf16": 8, "tf32": 11}  # bits of the significand
# The relative error that another order of summation causes. Differences of sums enlarge the error.
SUM_ERROR = 2.0**-18


def splitter(kind: str) -> float:
    """Returns the factor a for which a * x - (a * x - x) in f32 is x rounded to the type `kind`.

    T. J. Dekker, A floating-point technique for extending the available precision, 1971.
    """
    return 2.0 ** (24 - _BITS[kind]) + 1


@frozen
class Rounding:
    """Instructions for rounding the operands of contractions.

    `weights` maps a constant's name to the type to which it is rounded.  `operands` maps a
    constant's name to the type to which the tensors multiplied with the constant are rounded.  In
    both, an empty name stands for all contractions.  `spread`: other readers of a rounded tensor
    read it rounded too. `noise` is the standard deviation of a relative change of every weight,
    drawn from `seed`. The constants `scaled` are rounded as multiples of themselves, whose factor
    is drawn from `seed`.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    operands: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False
    noise: float = 0.0
    seed: int = 0
    scaled: Collection[str] = ()

    def weight(
        self, sources: Collection[str], array: Array, axis: int, state: bool = False
    ) -> Array:
        """Returns `array` rounded as a weight of a contraction that sums along `axis`.

        `array` is computed from the constants `sources`. `state`: the array is multiplied with the
        state inside a recurrent node. That state is not rounded here. If the artifact rounds it,
        noise of the same size in the weight stands for the rounding. A source may be a mask or an
        index, which no artifact rounds: it is returned as it is.
        """
        if array.dtype.kind != "f":
            return array
        types = {self.weights[name] for name in ("", *sources) if name in self.weights}
        rng = np.random.default_rng(self.seed)
        is_scaled = not {"", *sources}.isdisjoint(self.scaled)
        factor = 2.0 ** -rng.random()
        for type in sorted(types):
            if is_scaled:
                array = as_stored(array * factor, type, axis) / factor
            else:
                array = as_stored(array, type, axis)
        if not self.noise:
            return array
        change = max(self.noise, _STEPS.get(self.operand(sources), 0.0) if state else 0.0)
        changed = array * (1 + change * rng.standard_normal(array.shape))
        return changed.astype(array.dtype)

    def operand(self, sources: Collection[str]) -> str:
        """Returns the type to which the operand beside a contraction's weight is rounded.

        `sources` are the names of the constants from which the weight is computed. The result is
        empty if the operand is not rounded.
        """
        types = {self.operands[name] for name in ("", *sources) if name in self.operands}
        return min(types, default="")


def artifact_rounding(manifest: Mapping[str, Any], variant: int) -> Rounding | None:
    """Returns the rounding that an artifact's manifest gives for a variant; None if it rounds
    nothing."""
    entries = manifest["variants"][variant].get("rounded", ())
    listed = [e for e in entries if e["type"] in _STORED]
    weights = {name: item["type"] for item in listed for name in item["weights"]}
    # The model may store levels itself: then only the tensors multiplied with them are rounded.
    rounded = [item for item in entries if item.get("operands") in _STORED]
    operands = {name: item["operands"] for item in rounded for name in item["weights"]}
    # The key "" stands for all tensors.  The last entry without names counts.
    unnamed = (e for e in rounded if e["type"] not in _STORED and not e["weights"])
    operands |= {"": item["operands"] for item in unnamed}  # noqa: B035
    if manifest.get("precision") == "tf32":
        operands[""] = "tf32"
    return Rounding(weights, operands, spread=True) if listed or operands else None


def changed_rounding(manifest: Mapping[str, Any], variant: int, seed: int) -> Rounding:
    """Returns an artifact's rounding with noise in the weights, larger than the noise of reordered
    sums.

    The manifest does not give the rounding of every tensor: GPUs round all tensors between kernels,
    and a constant may be computed from others before it is rounded. The noise stands for these
    roundings. A constant may be multiplied by others before it is rounded. Its elements are then
    rounded to other values, and a factor drawn from `seed` stands for that. A constant whose source
    is unknown may be any constant. A kernel may pass some readers of a tensor the unrounded values;
    with odd seeds all readers get them.
    """
    rounding = artifact_rounding(manifest, variant)
    if rounding is None:
        return Rounding(noise=_CHANGE, seed=seed)
    facts = manifest["variants"][variant]
    listed = [e for e in facts.get("rounded", ()) if e["type"] in _STORED]
    computed = tuple(n for e in listed if not e.get("moved") for n in e["weights"] or ("",))
    # An entry that names no weight holds for all weights, which have the key "". The last of these
    # entries counts.
    unknown = {"": e["type"] for e in listed if not e["weights"]}  # noqa: B035
    operands = {} if facts.get("gpu") or "" in rounding.operands else rounding.operands
    spread = not seed % 2
    return Rounding({**rounding.weights, **unknown}, operands, spread, _CHANGE, seed, computed)
