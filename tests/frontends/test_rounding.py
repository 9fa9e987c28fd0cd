"""The rounding that a manifest gives: of weights, and of what is multiplied with levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tcc.frontends.rounding import artifact_rounding, changed_rounding


def manifest(*weights: str, kind: str = "i8") -> dict[str, Any]:
    entry = {"weights": list(weights), "type": kind, "operands": "bf16", "moved": True}
    return {"variants": [{"rounded": [entry]}]}


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_levels_of_the_model_round_the_other_factor_alone(seed: int | None) -> None:
    facts = manifest("B"), 0
    rounding = artifact_rounding(*facts) if seed is None else changed_rounding(*facts, seed)
    assert rounding is not None
    assert (rounding.operand(["B"]), rounding.operand(["C"])) == ("bf16", "")
    array = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    np.testing.assert_allclose(rounding.weight(["B"], array, 0), array, rtol=1e-5)


def test_levels_without_a_name_round_every_factor() -> None:
    rounding = artifact_rounding(manifest(), 0)
    assert rounding is not None
    assert rounding.operand(["C"]) == "bf16"


def test_levels_that_tcc_makes_round_weights_too() -> None:
    rounding = artifact_rounding(manifest("w", kind="int4"), 0)
    assert rounding is not None
    array = np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2)
    assert np.abs(rounding.weight(["w"], array, 0) - array).max() > 1e-3
    assert rounding.operand(["w"]) == "bf16"
