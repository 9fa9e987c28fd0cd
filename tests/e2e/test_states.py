"""States: a decoder's caches grow in the caller's memory, step by step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from onnx import helper
from tcc import cli

from tests.lib.agreement import FLOAT, Array, assert_agree, expected, model_of, session, value

node = helper.make_node
WIDTH, MOST = 16, 8


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def decoder(past: int | str, new: int | str = 1) -> onnx.ModelProto:
    """Returns one head of attention over caches [past, width], to which `new` tokens are
    appended."""
    forms = [[past, WIDTH], [None, WIDTH]]
    weights = {f"w{name}": normal(n, WIDTH, WIDTH) for n, name in enumerate("qkv")}
    return model_of(
        [
            *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
            node("Concat", ["past_k", "k"], ["present_k"], axis=0),
            node("Concat", ["past_v", "v"], ["present_v"], axis=0),
            node("Transpose", ["present_k"], ["kt"], perm=[1, 0]),
            node("MatMul", ["q", "kt"], ["scores"]),
            node("Mul", ["scores", "scale"], ["scaled"]),
            node("Softmax", ["scaled"], ["p"], axis=-1),
            node("MatMul", ["p", "present_v"], ["y"]),
        ],
        [value("x", FLOAT, [new, WIDTH]), *(value(f"past_{n}", FLOAT, forms[0]) for n in "kv")],
        [value("y", FLOAT, [new, WIDTH]), *(value(f"present_{n}", FLOAT, forms[1]) for n in "kv")],
        {**weights, "scale": np.array(0.25, np.float32)},
    )


STATES = {"past_k": "present_k", "past_v": "present_v"}


@pytest.mark.parametrize("new", [1, "n"])
def test_caches_grow_in_the_callers_memory(new: int | str) -> None:
    model = decoder("p", new)
    module = tcc.compile(model, state=STATES, jobs=1)
    runner = session(model)
    memory = {name: np.full((MOST, WIDTH), np.nan, np.float32) for name in STATES}
    caches = {name: np.zeros((0, WIDTH), np.float32) for name in STATES}
    length = 0
    for step, count in enumerate((3, 1, 2, 1) if new == "n" else (1,) * MOST):
        x = normal(step, count, WIDTH)
        reference = expected(runner, {"x": x, **caches})
        length += count
        views_of_caches = {name: array[:length] for name, array in memory.items()}
        outputs = module.run({"x": x, **views_of_caches})
        assert_agree(outputs, reference)
        for past, present in STATES.items():
            assert np.shares_memory(outputs[present], memory[past])
            assert outputs[present] is views_of_caches[past]
            caches[past] = reference[present]
    assert length == MOST or new == "n"


@pytest.mark.parametrize("past", [5, "p"])
def test_verify_gives_the_model_the_old_rows(
    past: int | str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = tmp_path / "model.onnx", tmp_path / "model.so"
    onnx.save(decoder(past), model)
    states = [f"--state={a}={b}" for a, b in STATES.items()]
    assert cli.execute(["compile", str(model), "-o", str(artifact), *states]) == 0
    sizes = [f"--input={name}=6x{WIDTH}" for name in STATES]
    capsys.readouterr()
    assert cli.execute(["verify", str(model), str(artifact), *sizes, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [item["output"] for item in report["outputs"]] == ["y", *STATES.values()]
    assert cli.execute(["run", str(artifact), *sizes]) == 0
    times = ["--rounds=1", "--seconds=0.01", "--threads=1"]
    assert cli.execute(["bench", str(artifact), *sizes, *times]) == 0


def test_verify_rounds_states_of_another_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = tmp_path / "model.onnx", tmp_path / "model.so"
    onnx.save(decoder(5), model)
    options = "--state=past_*=present_*", "--state-type=f16"
    assert cli.execute(["compile", str(model), "-o", str(artifact), *options]) == 0
    assert cli.execute(["run", str(artifact)]) == 0
    assert cli.execute(["verify", str(model), str(artifact)]) == 0
    assert "outputs agree with the reference evaluator" in capsys.readouterr().out


def test_verify_refuses_rows_it_cannot_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact = tmp_path / "model.onnx", tmp_path / "model.so"
    onnx.save(decoder("p", "n"), model)
    states = [f"--state={a}={b}" for a, b in STATES.items()]
    assert cli.execute(["compile", str(model), "-o", str(artifact), *states]) == 0
    assert cli.execute(["verify", str(model), str(artifact)]) == 2
    assert "a run appends n rows, which depends on symbolic sizes" in capsys.readouterr().err
