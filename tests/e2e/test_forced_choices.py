"""`tcc inspect --choices` lists the choices of a compile, and `tcc compile --choices` forces
them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tcc
from onnx import numpy_helper
from tcc.cli.decisions import decision_records, mark_same
from tcc.driver import compile_model, model_choices, same_kernels
from tcc.errors import UserError
from tcc.options import Options
from tcc.runtime.derivation_text import decision_lines

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
choices (float[1, 8, 20, 20] x) => (float[1, 24] y, float[1, 24] z) {
  a = Conv<pads=[1, 1, 1, 1]>(x, w1)
  b = Relu(a)
  c = Conv(b, w2)
  d = Sigmoid(c)
  e = ReduceMean<axes=[2, 3], keepdims=0>(d)
  y0 = MatMul(e, w3)
  z = MatMul(e, w4)
  y = Softmax<axis=-1>(y0)
}
"""
SHAPES = {"w1": (16, 8, 3, 3), "w2": (64, 16, 1, 1), "w3": (64, 24), "w4": (64, 24)}
OPTIONS = Options(target="cpu", cpu="x86-64-v3", name="choices")
# The number of forced alternatives that are compiled and run.
DRAWN = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(3)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    path = tmp_path_factory.mktemp("choices") / "choices.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="module")
def records(model: Path) -> list[dict[str, Any]]:
    return list(decision_records(model_choices(model, OPTIONS), None, every=True))


def compiled(model: Path, lines: list[dict[str, Any]], name: str) -> Path:
    """Returns the artifact of a compile in which `lines` force choices. All artifacts have the same
    file name, because an artifact contains its name."""
    file, output = _file(model, lines, name), model.parent / name / "model.so"
    output.parent.mkdir()
    result = compile_model(model, replace(OPTIONS, choices=file), output)
    assert not result.warnings
    return output


def test_kinds_of_decisions_are_listed(records: list[dict[str, Any]]) -> None:
    assert {record["kind"] for record in records} >= {"schedule", "join", "derive", "order"}
    for record in records:
        texts = [alternative["text"] for alternative in record["alternatives"]]
        assert record["alternative"] in texts
        assert record["rule"] == texts[0]
        assert len(set(texts)) == len(texts)


def test_choices_that_were_made_give_equal_bytes(
    model: Path, records: list[dict[str, Any]]
) -> None:
    plain = model.with_name("model.so")
    compile_model(model, OPTIONS, plain)
    assert compiled(model, records, "all").read_bytes() == plain.read_bytes()


def test_forced_alternatives_compute_the_same(model: Path, records: list[dict[str, Any]]) -> None:
    plain = compiled(model, [], "unforced").read_bytes()
    x = np.random.default_rng(4).standard_normal((1, 8, 20, 20)).astype(np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": x})
    alternatives = [
        (record, alternative["text"])
        for record in records
        for alternative in record["alternatives"]
        if alternative["text"] != record["alternative"] and alternative["seconds"] is not None
    ]
    by_kind: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for record, text in Random(5).sample(alternatives, len(alternatives)):
        by_kind.setdefault(record["kind"], []).append((record, text))
    turns = (pair for pairs in zip_longest(*by_kind.values()) for pair in pairs if pair)
    for number, (record, text) in enumerate(islice(turns, DRAWN)):
        line = {"site": record["site"], "alternative": text}
        path = compiled(model, [line], f"forced{number}")
        assert path.read_bytes() != plain, (record["kind"], text)
        outputs = tcc.load(path).run({"x": x})
        for reference, actual in zip(expected, outputs.values(), strict=True):
            assert np.abs(actual - reference).max() <= 1e-5 * np.abs(reference).max(), (
                record["kind"],
                text,
            )


def test_alternatives_that_give_the_same_kernels_are_marked(
    model: Path, records: list[dict[str, Any]]
) -> None:
    plain = compiled(model, [], "unmarked").read_bytes()
    few = [deepcopy(record) for record in records if record["kind"] in ("window", "merge")]
    mark_same(few, lambda lines: same_kernels(model, OPTIONS, lines, lambda stage: None))
    marks = []
    for record in few:
        for option in record["alternatives"]:
            if option["seconds"] is None or option["text"] == record["alternative"]:
                continue
            line = {"site": record["site"], "alternative": option["text"]}
            path = compiled(model, [line], f"marked{len(marks)}")
            assert option["same_kernel"] == (path.read_bytes() == plain), line
            marks.append(option["same_kernel"])
    # A window that no later join uses gives the same kernels; another grouping of a merge does not.
    assert {*marks} == {True, False}
    lines = "\n".join(decision_lines(few)).splitlines()
    assert sum(line.endswith("(the same kernels)") for line in lines) == marks.count(True)


def test_a_site_that_the_model_does_not_have_is_refused(model: Path) -> None:
    with pytest.raises(UserError) as error:
        compiled(model, [{"site": "0" * 32, "alternative": "join"}], "absent")
    assert error.value.where.endswith("absent.jsonl, line 1")


def test_a_line_forces_one_of_several_targets(model: Path) -> None:
    two_targets = replace(OPTIONS, target="cpu+cuda:sm_90")

    def joins(options: Options) -> dict[str, dict[str, str]]:
        choices: dict[str, dict[str, str]] = {}
        for decision in model_choices(model, options).decisions():
            if decision.site.kind == "join":
                texts = choices.setdefault(decision.site.device, {})
                texts[decision.site.text] = decision.choice.text
        return choices

    plain = joins(two_targets)
    assert {*plain} == {"cpu", "cuda"}
    contents = [{text.partition(" ")[2] for text in texts} for texts in plain.values()]
    assert set.intersection(*contents)  # both sides have sites with equal content
    text, choice = next(iter(plain["cuda"].items()))
    line = {"site": text, "alternative": "apart" if choice == "join" else "join"}
    forced = joins(replace(two_targets, choices=_file(model, [line], "cuda")))
    assert forced["cuda"][text] == line["alternative"]
    assert forced["cpu"] == plain["cpu"]


def test_a_site_that_another_line_removes_is_a_warning(
    model: Path, records: list[dict[str, Any]]
) -> None:
    (join, *_) = (r for r in records if r["kind"] == "join" and r["alternative"] == "join")
    lines = [{"site": join["site"], "alternative": "apart"}]
    ledger = model_choices(model, replace(OPTIONS, choices=_file(model, lines, "first")))
    sites = {decision.site.digest for decision in ledger.decisions()}
    removed = next(r for r in records if r["site"] not in sites)
    lines.append({"site": removed["site"], "alternative": removed["alternative"]})
    file = _file(model, lines, "removed")
    result = compile_model(model, replace(OPTIONS, choices=file), model.with_name("removed.so"))
    (warning,) = result.warnings
    assert "line 2" in warning


def _file(model: Path, lines: list[dict[str, Any]], name: str) -> Path:
    file = model.with_name(f"{name}.jsonl")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def test_sites_are_equal_in_processes_with_other_hashes(model: Path) -> None:
    def listing(seed: str) -> bytes:
        command = [sys.executable, "-m", "tcc", "inspect", model, "--choices", "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(command, check=True, capture_output=True, env=environment).stdout

    first = listing("1")
    assert first.count(b'"site"') > 5
    assert listing("2") == first
