"""The search for layers that stay in f32 finds them, on models whose errors are sums over
layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tcc.runtime.quantised import QuantisationBounds, QuantisationSearch, QuantisedModel
from tcc.runtime.reports import InputError
from tcc.runtime.samples import StoredSamples
from tcc.runtime.worker import write_arrays


class Models:
    """Stands for a worker and a compiler; each quantised layer adds its error to the result 1.

    An artifact multiplies errors by `factor`, and a scale per channel halves them.
    """

    def __init__(self, folder: Path, errors: Mapping[str, float], factor: float) -> None:
        self.errors, self.factor = errors, factor
        self.error_of: dict[Path, float] = {}
        self.facts: dict[str, Any] = {"layers": [*errors], "integer_nodes": []}
        self.source = folder / "m.onnx"
        self.source.write_bytes(b"model in f32")
        self.samples = StoredSamples(folder)
        for number in range(2):
            write_arrays(folder / f"inputs-{number}.npz", {"x": np.zeros(1, np.float32)})
        self.samples.count = 2
        self.samples.expect(lambda _: {"y": np.ones(1, np.float64)}, 2)

    def ask(self, line: str) -> Mapping[str, Any]:
        if line == "layers":
            return self.facts
        job = json.loads(line)
        error = sum(self.errors[name] for name in job["layers"]) / (1 + job["per_channel"])
        if job["path"]:
            self.error_of[Path(job["path"])] = error
            Path(job["path"]).write_bytes(b"model")
        return {"scores": {"error": error, "mean_error": error}}

    def compiled(self, model: Path, artifact: Path) -> Any:
        artifact.write_bytes(b"artifact")
        result = 1 + self.factor * self.error_of.get(model, 0.0)
        return SimpleNamespace(run=lambda _: {"y": np.full(1, result, np.float64)})

    def search(self, **bounds: float) -> tuple[QuantisationSearch, QuantisedModel | None]:
        search = QuantisationSearch(
            self.source, self.samples, 2, QuantisationBounds(**bounds),
            self.ask, self.compiled, lambda stage: None,
        )  # fmt: skip
        return search, search.best(["MinMax"])


def fewest(errors: list[float], bound: float) -> int | None:
    """Returns how many of the largest errors must be left out, so that the sum of the others is
    within the bound."""
    ordered = sorted(errors, reverse=True)
    return next((n for n in range(len(errors)) if sum(ordered[n:]) <= bound), None)


@pytest.mark.parametrize("factor", [1.0, 1.5])
@pytest.mark.parametrize("seed", range(12))
def test_as_few_layers_as_possible_stay_in_f32(tmp_path: Path, seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    errors = {f"layer{n}": float(rng.exponential()) for n in range(rng.integers(1, 9))}
    bound = float(rng.uniform(0, sum(errors.values())))
    search, result = Models(tmp_path, errors, factor).search(error=bound)
    count = fewest([factor * error / 2 for error in errors.values()], bound)
    assert (None if result is None else len(result.choice.in_f32)) == count
    if result is not None:
        assert result.choice.per_channel
        assert set(result.choice.in_f32) == {*sorted(errors, key=lambda n: -errors[n])[:count]}
        assert {*result.choice.layers} | {*result.choice.in_f32} == {*errors}
        assert search.models[-1 if count else 2] == result


def test_without_bounds_the_smallest_mean_error_is_taken(tmp_path: Path) -> None:
    search, result = Models(tmp_path, {"a": 0.5, "b": 0.1}, 1.0).search()
    assert result is search.models[2]
    assert [item.kind for item in search.models] == ["f32", "tensor minmax", "channel minmax"]
    assert search.layer_errors == {}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"layers": []}, "no layer can be quantised"),
        ({"integer_nodes": ["q"]}, "quantised already"),
    ],
)
def test_models_that_cannot_be_quantised(
    tmp_path: Path, facts: dict[str, Any], message: str
) -> None:
    models = Models(tmp_path, {"a": 1.0}, 1.0)
    models.facts |= facts
    with pytest.raises(InputError, match=message):
        models.search()


def test_a_bound_on_classes_needs_classes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no classes"):
        Models(tmp_path, {"a": 1.0}, 1.0).search(top1=0.9)


def test_an_infinite_error_is_null_in_json(tmp_path: Path) -> None:
    models = Models(tmp_path, {"a": float("inf")}, 1.0)
    search, result = models.search(error=1.0)
    assert result is None
    times = {item.kind: SimpleNamespace(best=1.0) for item in search.models}
    record = json.loads(json.dumps(search.record(times, result), allow_nan=False))  # type: ignore[arg-type]
    assert record["models"][1]["error"] is None
    assert record["layer_errors"] == {"a": None}
