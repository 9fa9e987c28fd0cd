"""What rounding makes of the operands of contractions, for references of any framework."""

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

import numpy as np
from tcc.ir.op import Array
from tcc.options import WEIGHTS
from tcc.passes.quantize.quantize_weights import as_stored
from tcc.record import record

# The relative change of a weight: eight times what sums in another order make of it.
_CHANGE = 2.0**-20
_STEPS = {"bf16": 2.0**-9, "f16": 2.0**-12, "tf32": 2.0**-12}  # errors of one rounding
_STORED = ("bf16", "f16", *WEIGHTS)
_BITS = {"bf16": 8, "tf32": 11}  # of a significand
# The relative error that another order makes of a sum; differences of sums enlarge it.
SUM_ERROR = 2.0**-18


def splitter(kind: str) -> float:
    """The factor a with which a * x - (a * x - x) is x in f32, rounded to a type.

    T. J. Dekker, A floating-point technique for extending the available precision, 1971.
    """
    return 2.0 ** (24 - _BITS[kind]) + 1


@record
class Rounding:
    """How the operands of contractions are rounded.

    `weights` has the type of each constant of the model that is rounded, `operands` the type to
    which the tensors multiplied with it are rounded, by the name of the constant; an empty name
    stands for all contractions.  `spread`: other readers of such a tensor see it rounded too.
    `noise` is the standard deviation of a relative change of every weight, drawn from `seed`.
    """

    weights: Mapping[str, str] = field(default_factory=dict)
    operands: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False
    noise: float = 0.0
    seed: int = 0

    def weight(
        self, sources: Collection[str], array: Array, axis: int, state: bool = False
    ) -> Array:
        """What `array`, made of the constants `sources` and summed along `axis`, becomes.  The
        `state` of a recurrent node, inside it, is not rounded here: where the artifact rounds it,
        that is noise, for which the weight changes as much."""
        types = {self.weights[name] for name in ("", *sources) if name in self.weights}
        for type in sorted(types):
            array = as_stored(array, type, axis)
        if not self.noise:
            return array
        rng = np.random.default_rng(self.seed)
        change = max(self.noise, _STEPS.get(self.operand(sources), 0.0) if state else 0.0)
        changed = array * (1 + change * rng.standard_normal(array.shape))
        return changed.astype(array.dtype)

    def operand(self, sources: Collection[str]) -> str:
        """The type to which a tensor multiplied with a constant made of `sources` is rounded."""
        types = {self.operands[name] for name in ("", *sources) if name in self.operands}
        return min(types, default="")


def artifact_rounding(manifest: Mapping[str, Any], variant: int) -> Rounding | None:
    """How a variant of an artifact rounds, by its manifest; None where it does not."""
    listed = [e for e in manifest["variants"][variant].get("rounded", ()) if e["type"] in _STORED]
    weights = {name: item["type"] for item in listed for name in item["weights"]}
    rounded = [item for item in listed if item.get("operands") in _STORED]
    operands = {name: item["operands"] for item in rounded for name in item["weights"]}
    if manifest.get("precision") == "tf32":
        operands[""] = "tf32"
    return Rounding(weights, operands, spread=True) if listed or operands else None


def changed_rounding(manifest: Mapping[str, Any], variant: int, seed: int) -> Rounding:
    """The same, with weights that change more than results do where sums have another order.

    Where it is not known which tensors an artifact rounds, none is: then it is noise that the
    reference rounds them, and so is it of a constant that was computed from others before it was
    rounded.  GPUs round all tensors between kernels; a constant without a known source may be any.
    A kernel may hand some readers of a tensor what it has not rounded: with odd seeds all do.
    """
    rounding = artifact_rounding(manifest, variant)
    if rounding is None:
        return Rounding(noise=_CHANGE, seed=seed)
    facts = manifest["variants"][variant]
    listed = facts.get("rounded", ())
    computed = {n for e in listed if not e.get("moved") for n in e["weights"]}
    exact = {name: type for name, type in rounding.weights.items() if name not in computed}
    # The empty name is one key on purpose: where several entries name no weight, the last counts.
    unknown = {"": e["type"] for e in listed if not e["weights"]}  # noqa: B035
    operands = {} if facts.get("gpu") or "" in rounding.operands else rounding.operands
    spread = not seed % 2
    return Rounding({**exact, **unknown}, operands, spread, _CHANGE, seed)
