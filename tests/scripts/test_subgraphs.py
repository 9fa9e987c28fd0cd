"""The listed small graphs compute what their names say, and the list does not change by
accident."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from beside import PairSettings
from goals import geometric_mean
from subgraph import attention, listing, measure
from subgraph.families import FAMILIES, SubgraphCase, cases, rows, sweep
from subgraph.measure import Bench, _Steps, _Unfit, run_group
from subgraph.results import Conditions, ResultStore, SubgraphResult, table
from subgraph.writer import GraphWriter, drawn, live_bytes, model_of
from subgraph_formulas import FORMULAS, Given, layer_norm, rms
from tcc.runtime.interleaved import Times

from tests.processors import adds_bytes_exactly

CONDITIONS = Conditions("cpu: a processor", "abc", PairSettings(2, 5, 0.2))


def smallest(family: str) -> SubgraphCase:
    """Returns the smallest graph of a family; a table for gathers is shortened."""
    (family_found,) = (f for f in FAMILIES if f.name == family)
    options = [SubgraphCase(family, family_found.build, sizes) for sizes in family_found.sizes]
    case = min(options, key=lambda case: case.bytes)
    shorter = {
        name: min(size, 999) if name == "table" else size for name, size in case.sizes.items()
    }
    return replace(case, sizes=shorter)


def run(case: SubgraphCase) -> tuple[dict[str, Any], list[Any]]:
    """Runs a case in ONNX Runtime; returns inputs and weights by name, and results in order."""
    model = model_of(case.name, case.graph)
    onnx.checker.check_model(model)
    feed = drawn(case.name, case.graph.inputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return feed | drawn(case.name, case.graph.weights), session.run(None, feed)


def as_f64(given: Mapping[str, Any]) -> Given:
    return {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in given.items()}


def agrees(case: SubgraphCase) -> bool:
    inputs, outputs = run(case)
    expected = FORMULAS[case.family](as_f64(inputs))
    assert len(outputs) == len(expected)
    return all(
        np.array_equal(a, b)
        if a.dtype.kind == "i"
        else np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
        for a, b in zip(outputs, expected, strict=True)
    )


@pytest.mark.parametrize("family", FORMULAS)
def test_a_graph_computes_its_formula(family: str) -> None:
    assert agrees(smallest(family))


def test_a_third_of_the_builders_has_a_formula() -> None:
    builders = {f.name: f.build for f in FAMILIES}
    assert 3 * len({builders[name] for name in FORMULAS}) >= len(set(builders.values()))


@pytest.mark.parametrize("family", [f.name for f in FAMILIES if f.name not in FORMULAS])
def test_the_other_graphs_run_and_their_signals_live(family: str) -> None:
    for output in run(smallest(family))[1]:
        assert np.isfinite(output).all()
        assert output.size == 1 or 1e-3 < output.std() < 1e3


def without_scale(
    w: GraphWriter,
    q: str,
    k: str,
    v: str,
    scale: float,
    *,
    real: Any = attention._attend,
    **more: Any,
) -> str:
    return str(real(w, q, k, v, 1.0, **more))


def without_mask(
    w: GraphWriter,
    q: str,
    k: str,
    v: str,
    scale: float,
    *,
    real: Any = attention._attend,
    **more: Any,
) -> str:
    return str(real(w, q, k, v, scale, **more | {"mask": None}))


@pytest.mark.parametrize("fault", [without_scale, without_mask])
def test_a_wrong_builder_is_caught(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_attend", fault)
    case = smallest("ALiBi (BLOOM)")
    assert not agrees(case)
    assert case.graph.digest not in listing.LIST.read_text(), "the list tells too"


Forward = Callable[[Any, Given], Any]
FORWARDS: Mapping[str, Forward] = {
    "LayerNorm backward": lambda x, v: layer_norm(x, {**v, "bias": 0.0}),
    "RMSNorm backward": lambda x, v: rms(x) * v["gain"],
}


@pytest.mark.parametrize("family", FORWARDS)
def test_gradients_are_those_of_the_forward_graphs(family: str) -> None:
    """The gradients agree with central differences of the f64 formula, along a random direction for
    each row."""
    raw, (dx, dgain, *other_gradients) = run(smallest(family))
    inputs, forward, step = as_f64(raw), FORWARDS[family], 1e-6
    way = np.random.default_rng(0).standard_normal(inputs["x"].shape)
    ahead, behind = (forward(inputs["x"] + s * way, inputs) for s in (step, -step))
    slopes = ((ahead - behind) / (2 * step) * inputs["dy"]).sum(-1)
    np.testing.assert_allclose((dx * way).sum(-1), slopes, rtol=1e-4, atol=1e-3)
    normal = forward(inputs["x"], {**inputs, "gain": 1.0})
    np.testing.assert_allclose(dgain, (normal * inputs["dy"]).sum((0, 1)), rtol=1e-4, atol=1e-4)
    for dbias in other_gradients:
        np.testing.assert_allclose(dbias, inputs["dy"].sum((0, 1)), rtol=1e-4, atol=1e-4)


@adds_bytes_exactly
def test_dynamic_quantisation_is_near_the_product_of_reals() -> None:
    case = smallest("quantise, matmul")
    inputs, (output,) = run(case)
    (codes,) = (a for a in case.graph.constants.values() if a.dtype == np.int8 and a.ndim == 2)
    weight = codes.astype(np.float64) / (73 * 768**0.5)
    expected = inputs["x"].astype(np.float64) @ weight + inputs["bias"]
    error = np.abs(output - expected).max()
    assert error < 0.02 * np.abs(expected).max()


def test_the_committed_list_is_current() -> None:
    assert list(listing.changed()) == [], "run scripts/subgraphs --write-list if this is meant"


def test_names_and_files_are_distinct() -> None:
    listed = cases(500)
    assert len({c.name for c in listed}) == len({c.file for c in listed}) == len(listed)


def test_lengths_and_batches_are_those_asked_for() -> None:
    sizes = [(1, 17), (1, 512), (1, 1500), (1, 4096), (8, 17), (8, 512), (8, 1500), (8, 4096)]
    assert [(s["batch"], s["length"]) for s in rows()] == sizes


def test_a_larger_sweep_holds_the_smaller_one() -> None:
    few, many = [c.name for c in sweep(10)], [c.name for c in sweep(3000)]
    assert many[:10] == few
    sizes = np.array([[*c.sizes.values()] for c in sweep(3000)])
    assert (sizes.min(0) == 1).all()
    assert (sizes.max(0) == 70).all()


def test_live_bytes_are_counted_by_hand() -> None:
    w = GraphWriter()
    x = w.input("x", 1000)  # 4,000 bytes, always live, like the scalar
    a = w.op("Exp", x)
    b = w.op("Mul", a, w.constant(2.0))  # a dies here
    c = w.op("Concat", b, x, axis=0)  # 8,000 bytes, while b is live
    assert live_bytes(w.graph(w.op("Neg", c))) == 4004 + 8000 + 8000
    assert live_bytes(w.graph(a, c)) == 4004 + 4000 + 8000 + 8000  # a stays


def test_cases_that_do_not_fit_are_left_out_by_size() -> None:
    sizes = {"batch": 1, "length": 4096}
    fitting = SubgraphCase("causal (GPT-2)", attention.causal, sizes)
    too_large = replace(fitting, sizes={**sizes, "batch": 8})
    scores = 12 * 4096**2 * 4  # bytes: before the softmax and after it
    assert fitting.fits
    assert 2 * scores < fitting.bytes < 2.2 * scores
    assert not too_large.fits
    assert 16 * scores < too_large.bytes < 17.6 * scores
    listed = listing.text([fitting, too_large])
    assert listed.index(fitting.name) < listed.index("left out:") < listed.index(too_large.name)


def timed(tcc: float, ort: float, **facts: Any) -> SubgraphResult:
    return SubgraphResult("timed", tcc=tcc, ort=ort, ratio=ort / tcc, best=ort / tcc, **facts)


def test_a_result_is_kept_for_its_graph_and_conditions_alone(tmp_path: Path) -> None:
    case = smallest("tanh")
    result = timed(0.002, 0.001, kernels=[{"name": "k"}])
    ResultStore(tmp_path, CONDITIONS).put(case, result)
    assert ResultStore(tmp_path, CONDITIONS).get(case) == result
    assert ResultStore(tmp_path, replace(CONDITIONS, sources="new")).get(case) is None
    assert (
        ResultStore(tmp_path, replace(CONDITIONS, plan=PairSettings(1, 5, 0.2))).get(case) is None
    )
    assert ResultStore(tmp_path, replace(CONDITIONS, sources="new")).earlier(case) == result
    assert ResultStore(tmp_path, replace(CONDITIONS, target="another")).earlier(case) is None
    assert (
        ResultStore(tmp_path, replace(CONDITIONS, plan=PairSettings(1, 5, 0.2))).earlier(case)
        is None
    )
    other = SubgraphCase(case.family, FAMILIES[0].build, {"batch": 1, "length": 17})
    Path(tmp_path / f"{case.file}.json").rename(tmp_path / f"{other.file}.json")
    assert ResultStore(tmp_path, CONDITIONS).get(other) is None
    ResultStore(tmp_path, CONDITIONS).put(case, SubgraphResult("memory"))
    assert ResultStore(tmp_path, CONDITIONS).get(case) is None, "there may be more the next time"


def test_the_table_names_slow_subgraphs_first() -> None:
    kernel = {"name": "k0", "source": "attn", "launches": 2, "measured": 3e-6, "bound": "flops",
              "share": 0.25}  # fmt: skip
    results_by_name = {
        "fast": timed(0.001, 0.004, date="2026-01-02"),
        "slow": timed(0.002, 0.001, date="2026-01-01", kernels=[kernel]),
        "just": timed(0.1, 0.097, date="2026-01-01"),
        "broken": SubgraphResult("compile", why="no such thing", command="tcc compile x"),
    }
    text = table(results_by_name, 9, CONDITIONS)
    assert "cpu: a processor, 2 threads" in text
    assert "2026-01-01 to 2026-01-02" in text
    assert "3 of 9 graphs timed, 1 below 0.97, geometric mean 1.25" in text  # of 4, 0.5, 0.97
    below = text.split("below 0.97:\n")[1].split("\n\n")[0].splitlines()
    assert below[0].split() == ["slow", "2.0000", "1.0000", "0.50", "0.50", "0e+00"]
    assert below[1:] == ["    3.0 us k0 attn, 25% of flops, 2 launches"]
    assert "broken: tcc did not compile it: no such thing\n  tcc compile x\n" in text
    last = text.rstrip().split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in last] == ["graph", "slow", "just", "fast"]


def test_the_mean_is_geometric() -> None:
    assert geometric_mean([4, 0.25, 8]) == pytest.approx(2)


def test_a_digest_knows_draws_constants_and_attributes() -> None:
    def made(value: float = 1.0, axis: int = 0, name: str = "x") -> str:
        w = GraphWriter()
        x = w.op("Add", w.input(name, 2, 2), w.constant(value))
        return w.graph(w.op("Softmax", x, axis=axis)).digest

    digests = [made(), made(value=2.0), made(axis=1), made(name="y")]
    assert len({*digests}) == 4
    assert made() == digests[0]


def judged(
    error: float, status: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | SubgraphResult, list[list[str]]]:
    """Returns the outcome for results that differ by `error`, and the requested commands, which end
    with `status`."""
    lines = []

    def answer(line: list[str], cap: float) -> tuple[int, str, str]:
        lines.append(line[3:])
        return status, "the verdict", ""

    monkeypatch.setattr(measure, "run_group", answer)
    nothing: Any = None
    bench = Bench(CONDITIONS.plan, nothing, nothing, 1.0)
    steps = _Steps(smallest("tanh"), folder, bench)
    expected = np.ones(3, np.float32)
    try:
        return steps._agree({"y": expected + np.float32(error)}, {"y": expected}), lines
    except _Unfit as unfit:
        return unfit.result, lines


def test_results_above_the_tolerance_are_checked_by_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, artifact = tmp_path / "model.onnx", tmp_path / "model.so"
    command = ["verify", str(model), str(artifact)]
    assert judged(5e-5, 1, tmp_path, monkeypatch) == (pytest.approx(5e-5, rel=1e-2), [])
    assert judged(2e-4, 0, tmp_path, monkeypatch) == (pytest.approx(2e-4, rel=1e-2), [command])
    result, lines = judged(2e-4, 1, tmp_path, monkeypatch)
    assert isinstance(result, SubgraphResult)
    assert (result.outcome, result.why, lines) == ("differs", "the verdict", [command])
    assert result.command == f"tcc verify {model} {artifact}"


class Timed:
    """Replaces everything that takes time: artifacts of fixed bytes, runtimes of fixed speeds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, ours: list[float]) -> None:
        self.artifact, self._folder, self._ours = b"bytes", folder, ours
        self.rounds: list[int] = []
        nothing: Any = SimpleNamespace(begin=lambda *_, **__: None)
        self._bench = Bench(CONDITIONS.plan, nothing, nothing, 1.0)
        monkeypatch.setattr(measure, "run_group", self._command)
        monkeypatch.setattr(measure, "beside", self._beside)
        monkeypatch.setattr(_Steps, "_reference", lambda steps, feed: {})

    def result(self, earlier: SubgraphResult | None = None) -> SubgraphResult:
        return measure.measure(
            smallest("tanh"), self._folder / "graph", self._bench, False, earlier
        )

    def _command(self, line: list[str], cap: float) -> tuple[int, str, str]:
        if "compile" in line:
            Path(line[-1]).write_bytes(self.artifact)
        return 0, '[{"name": "k0", "source": "", "launches": 1, "measured": 1, "bound": "flops", ' \
            '"share": 1}]', ""  # fmt: skip

    def _beside(self, *arguments: Any, **_: Any) -> dict[str, Times]:
        self.rounds.append(arguments[3].rounds)
        seconds = {"tcc": self._ours.pop(0), "ort": 1.0}
        return {kind: Times(s, s, (s,), 1) for kind, s in seconds.items()}


@pytest.mark.parametrize(
    ("ours", "rounds", "ratio"),
    [([0.5], [5], 2.0), ([2.0, 0.5], [5, 15], 2.0), ([2.0, 4.0], [5, 15], 0.25)],
)
def test_subgraphs_that_first_seem_slow_are_timed_longer(
    ours: list[float], rounds: list[int], ratio: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    steps = Timed(monkeypatch, tmp_path, list(ours))
    result = steps.result()
    assert (steps.rounds, result.ratio, bool(result.kernels)) == (rounds, ratio, ratio < 1)


def test_times_of_the_same_artifact_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Timed(monkeypatch, tmp_path, [0.5, 0.25])
    first = steps.result()
    assert steps.result(first) is first
    steps.artifact = b"other bytes"
    second = steps.result(first)
    assert (second.ratio, second.artifact != first.artifact) == (4.0, True)


def test_a_step_that_takes_too_long_ends() -> None:
    assert run_group(["tail", "-f", "/dev/null"], 0.2) == (124, "", "it took more than 0.2 seconds")
    assert run_group(["sh", "-c", "echo a; echo b >&2; exit 3"], 60) == (3, "a\n", "b\n")
