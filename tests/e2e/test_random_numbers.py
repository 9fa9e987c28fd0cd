"""Compiled random operators: distributions, seeds, threads, loops, targets, ranks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli
from tcc.errors import TccError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.runtime import Module

from tests.lib.agreement import BOOL, FLOAT, INT64, Array, model_of, value

from .random_models import CHANCES, WEIGHTS, every_kind, feeds, flow, furthest, looped, node

N = 200


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    artifact = tmp_path_factory.mktemp("random") / "kinds.so"
    tcc.compile(every_kind(), jobs=1).save(artifact)
    return artifact


@pytest.fixture(scope="module")
def module(path: Path) -> Module:
    return tcc.load(path)


@pytest.fixture(scope="module")
def voice() -> Module:
    return tcc.compile(flow(), jobs=1)


@pytest.fixture(scope="module")
def drawn(module: Module) -> dict[str, Array]:
    return module.run(feeds(N), seed=1)


def gaussian(mean: float, deviation: float, x: Array) -> Array:
    return np.array([0.5 * math.erfc((mean - v) / deviation / 2**0.5) for v in x])


def test_distributions(drawn: dict[str, Array]) -> None:
    for name, low, high in (("uniform", -2, 3), ("uniform64", 0, 1)):
        sample = drawn[name]
        assert sample.min() >= low
        assert sample.max() < high
        assert furthest(sample, lambda x, a=low, b=high: (x - a) / (b - a)) < 2.2
    for name, mean, deviation in (
        ("normal", 2, 3), ("again", 2, 3), ("normal64", 0, 1), ("like", 0, 1),
    ):  # fmt: skip
        law = lambda x, m=mean, d=deviation: gaussian(m, d, x)  # noqa: E731
        assert furthest(drawn[name], law) < 2.2
    assert drawn["normal16"].dtype == np.float16
    assert abs(drawn["normal16"].astype(float).std() - 0.5) < 0.01
    assert drawn["uniform16"].max() < 1
    assert len(np.unique(drawn["uniform16"])) > 2000


def test_coins_and_classes(drawn: dict[str, Array]) -> None:
    for name in ("coin", "coins"):
        shares = drawn[name].mean(axis=0).reshape(20, 5).mean(axis=0)
        assert shares[0] == 0
        assert shares[-1] == 1
        np.testing.assert_allclose(shares, CHANCES[:5], atol=0.03)
    assert drawn["classes"].shape == (N, 7)
    counts = np.bincount(drawn["classes"].reshape(-1), minlength=4)
    assert counts[1] == 0
    due = WEIGHTS * N * 7
    chi2 = sum((counts[k] - due[k]) ** 2 / due[k] for k in (0, 2, 3))
    assert chi2 < 13.8  # with two degrees of freedom, it exceeds this once in 1,000


def test_seeds_repeat_and_runs_without_one_differ(
    module: Module, drawn: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TCC_SEED", raising=False)
    inputs = feeds(N)
    again, other = module.run(inputs, seed=1), module.run(inputs, seed=2)
    first, second = module.run(inputs), module.run(inputs)
    for name, array in drawn.items():
        np.testing.assert_array_equal(again[name], array)
        assert not np.array_equal(other[name], array), name
        assert not np.array_equal(first[name], second[name]), name
        assert not np.array_equal(first[name], array), name
    monkeypatch.setenv("TCC_SEED", "1")
    told = module.run(inputs)
    monkeypatch.setenv("TCC_SEED", "18446744073709551615")
    largest = module.run(inputs)
    for name, array in drawn.items():
        np.testing.assert_array_equal(told[name], array)
        assert not np.array_equal(largest[name], array), name
    np.testing.assert_array_equal(module.run(inputs, seed=2**64 - 1)["normal"], largest["normal"])


def test_equal_nodes_draw_differently(drawn: dict[str, Array]) -> None:
    assert not np.array_equal(drawn["normal"], drawn["again"])
    assert abs(np.corrcoef(drawn["normal"].ravel(), drawn["again"].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn["like"].ravel(), drawn["normal64"].ravel())[0, 1]) < 0.03
    # Two readers of one node see one draw.
    np.testing.assert_array_equal(drawn["y"], drawn["like"])


def test_run_takes_a_seed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A given seed fixes the draws; without it draws differ, but generated inputs use seed 0."""
    monkeypatch.delenv("TCC_SEED", raising=False)
    arrays = []
    for words in ([], [], ["--seed", "3"], ["--seed", "3"], ["--seed", "0"]):
        folder = tmp_path / str(len(arrays))
        assert cli.execute(["run", str(path), "--output", str(folder), *words]) == 0
        arrays.append(np.load(folder / "normal.npy"))
    capsys.readouterr()
    assert np.array_equal(arrays[2], arrays[3])
    assert len({array.tobytes() for array in arrays}) == 4


@pytest.mark.parametrize(
    ("model", "oracle"),
    [(flow(), "ONNX Runtime"), (looped(), "the reference evaluator")],
)
def test_verify_compares_equal_draws(
    model: onnx.ModelProto, oracle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    artifact = tmp_path / "m.so"
    tcc.compile(model, jobs=1).save(artifact)
    assert cli.execute(["verify", str(path), str(artifact)]) == 0
    assert oracle in capsys.readouterr().out
    assert cli.execute(["verify", str(path), "--layers"]) == 0
    # A mean or seed other than the model's is detected.
    for attribute in (a for graph_node in model.graph.node for a in graph_node.attribute):
        if attribute.name in ("mean", "low", "seed"):
            attribute.f += 0.1
    onnx.save(model, path)
    assert cli.execute(["verify", str(path), str(artifact)]) == 1
    capsys.readouterr()


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", "18446744073709551616"])
def test_a_bad_variable_is_refused(
    module: Module, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCC_SEED", bad)
    with pytest.raises(TccError, match=f"TCC_SEED is '{bad}': expected a whole number below 2"):
        module.run(feeds(2))
    module.run(feeds(2), seed=0)


@pytest.mark.parametrize("bad", [-1, 2**64, 0.5, "7"])
def test_a_bad_seed_is_refused(module: Module, bad: object) -> None:
    with pytest.raises(TccError, match="that is no seed"):
        module.run(feeds(2), seed=bad)  # type: ignore[arg-type]


def test_threads_change_nothing(path: Path, drawn: dict[str, Array]) -> None:
    for threads in (1, 2, 4):
        outputs = tcc.load(path, threads=threads).run(feeds(N), seed=1)
        for name, array in drawn.items():
            np.testing.assert_array_equal(outputs[name], array)


def assert_same(found: dict[str, Array], due: dict[str, Array]) -> None:
    """Fails unless integers and uniform numbers are equal and derived numbers are close."""
    assert found.keys() == due.keys()
    for name, array in due.items():
        if array.dtype.kind == "f" and "uniform" not in name:
            scale = 2e-3 if array.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(found[name], array, rtol=scale, atol=scale)
        else:
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("n", [0, 1, 33])
def test_the_graph_has_the_same_draws(module: Module, n: int) -> None:
    graph, inputs = load_model(every_kind(), {}), feeds(n)
    for seed in (0, 2**63 + 5):
        assert_same(module.run(inputs, seed=seed), evaluate_graph(graph, inputs, seed=seed))


def test_loops_draw_anew_in_each_trip() -> None:
    model = looped()
    module = tcc.compile(model, jobs=1)
    inputs = {"x": np.ones(5, np.float32), "rows": np.ones((6, 5), np.float32)}
    outputs, other = module.run(inputs, seed=4), module.run(inputs, seed=5)
    names = ("alone", "nested", "scanned", "seeded", "seeded2")
    everything = np.concatenate([outputs[name].reshape(-1) for name in names])
    assert everything.size == 5 * (1 + 9 + 6 + 1 + 1)
    assert len(np.unique(everything)) == everything.size
    for name in names:
        # A seed in the model holds for every run.
        assert np.array_equal(outputs[name], other[name]) == name.startswith("seeded")
    due = evaluate_graph(load_model(model, {}), inputs, seed=4)
    for name in names:
        np.testing.assert_array_equal(outputs[name], due[name])


def test_trips_before_a_loop_draw_apart() -> None:
    """A value changes its rank in three trips, which the importer unrolls before the loop."""
    body = helper.make_graph(
        [
            node("Unsqueeze", ["v", "zero"], ["longer"]),
            node("Expand", ["longer", "five"], ["w"]),
            node("RandomUniformLike", ["x"], ["u"]),
            node("Identity", ["c"], ["d"]),
        ],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("v", FLOAT, None)],
        [value("d", BOOL, []), value("w", FLOAT, None), value("u", FLOAT, [5])],
    )
    nodes = [node("Loop", ["n", "", "x"], ["v_", "us"], body=body)]
    for number in (2, 3):
        model = model_of(
            nodes, [value("x", FLOAT, [5])],
            [value("us", FLOAT, [number, 5]), value("v_", FLOAT, [1] * number + [5])],
            {"zero": np.array([0]), "five": np.array([5]), "n": np.array(number)}, opset=17,
        )  # fmt: skip
        inputs = {"x": np.ones(5, np.float32)}
        draws = tcc.compile(model, jobs=1).run(inputs, seed=4)["us"]
        assert len(np.unique(draws)) == 5 * number
        np.testing.assert_array_equal(
            draws, evaluate_graph(load_model(model, {}), inputs, seed=4)["us"]
        )


def test_a_voice(voice: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TCC_SEED", raising=False)
    module, graph = voice, load_model(flow(), {})
    for t in (1, 50):
        x = np.random.default_rng(t).standard_normal((t, 8)).astype(np.float32)
        for warm in (0.0, 0.667):
            inputs = {"x": x, "temperature": np.array(warm, np.float32)}
            outputs, due = module.run(inputs, seed=9), evaluate_graph(graph, inputs, seed=9)
            np.testing.assert_allclose(outputs["z"], due["z"], rtol=1e-5, atol=1e-5)
            assert np.mean(outputs["durations"] != due["durations"]) < 0.01
            repeats = np.array_equal(module.run(inputs)["z"], module.run(inputs)["z"])
            assert repeats == (warm == 0)


def test_buckets_and_fixed_sizes_draw_the_same(voice: Module) -> None:
    inputs = {
        "x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32),
        "temperature": np.array(0.7, np.float32),
    }
    due = voice.run(inputs, seed=3)["z"]
    for options in ({"buckets": {"t": (4,)}}, {"inputs": {"x": (4, 8)}}):
        output = tcc.compile(flow(), jobs=1, **options).run(inputs, seed=3)["z"]
        np.testing.assert_allclose(output, due, rtol=1e-5, atol=1e-5)


def test_zero_times_a_draw_is_zero_and_folds_nothing_else() -> None:
    """The model has constant shapes and an unused draw; constant folding computes no draws."""
    model = model_of(
        [
            node("RandomNormal", [], ["r"], shape=[40, 5]),
            node("Mul", ["r", "zero"], ["z"]),
            node("Add", ["z", "x"], ["y"]),
        ],
        [value("x", FLOAT, [40, 5])],
        [value("y", FLOAT, [40, 5]), value("r", FLOAT, [40, 5])],
        {"zero": np.float32(0)},
        opset=17,
    )
    module = tcc.compile(model, jobs=1)
    x = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    outputs = module.run({"x": x}, seed=0)
    np.testing.assert_array_equal(outputs["y"], x)
    assert len(np.unique(outputs["r"])) == 200


def test_equal_layers_share_kernels() -> None:
    """The number of a random stream is no constant of a kernel, so eight equal nodes share
    kernels."""

    def kernels(count: int) -> int:
        nodes, x = [], "x"
        for n in range(count):
            nodes += [
                node("RandomNormalLike", [x], [f"r{n}"]),
                node("MatMul", [f"r{n}", "w"], [f"m{n}"]),
            ]
            x = f"m{n}"
        model = model_of(
            nodes, [value("x", FLOAT, [32, 32])], [value(x, FLOAT, [32, 32])],
            {"w": np.eye(32, dtype=np.float32)}, opset=17,
        )  # fmt: skip
        (variant,) = tcc.compile(model, jobs=1).manifest["variants"]
        return len(variant["kernels"])

    assert kernels(8) <= kernels(3)
