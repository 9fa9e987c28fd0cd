"""The conformance harness handles cases that kill or stall their process, modes, results and the
list of expected failures."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from onnx_suite.cases import SuiteCase, mismatch
from onnx_suite.exact import exact
from onnx_suite.judge import OUTCOMES, SuiteRow
from onnx_suite.modes import constant, dynamic
from onnx_suite.pool import rows
from onnx_suite.report import Expected, read_expected, read_rows, table, write_rows


def model(*sizes: int) -> Any:
    info = helper.make_tensor_value_info
    node = helper.make_node("Add", ["x", "y"], ["z"])
    inputs = [info(name, TensorProto.FLOAT, sizes) for name in "xy"]
    graph = helper.make_graph([node], "g", inputs, [info("z", TensorProto.FLOAT, sizes)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


class Source:
    """A stand-in for the source of a node case: a model and its data sets."""

    def __init__(self) -> None:
        self.model, self.data_sets = model(2), []


def case(name: str) -> SuiteCase:
    return SuiteCase(name, "node", 1e-3, 1e-7, Source())


def fate(each: SuiteCase) -> SuiteRow:
    match each.name:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "sleep":
            time.sleep(60)
    return SuiteRow(each.name, "core", "pass", 0.0)


def test_a_case_that_kills_or_stalls_its_process_is_a_row() -> None:
    names = ["one", "kill", "two", "sleep", "exit", "three"]
    rows_by_name = {
        row.name: row for row in rows([case(n) for n in names], fate, jobs=2, limit=2.0)
    }
    outcomes = {name: row.outcome for name, row in rows_by_name.items()}
    passed = dict.fromkeys(("one", "two", "three"), "pass")
    assert outcomes == passed | {"kill": "crash", "sleep": "hang", "exit": "crash"}
    assert rows_by_name["kill"].why.startswith("SIGKILL ended it")
    assert rows_by_name["exit"].why == "its exit code is 3"


def test_modes_open_sizes_and_fix_inputs() -> None:
    arrays = [np.ones((3, 1), np.float32), np.zeros((3, 1), np.float32)]
    changed, feeds = dynamic(model(3, 1), arrays)
    dims = [d for v in changed.graph.input for d in v.type.tensor_type.shape.dim]
    assert [d.dim_param or d.dim_value for d in dims] == ["n3", 1, "n3", 1]
    assert feeds == arrays
    changed, feeds = constant(model(3, 1), arrays)
    assert ([t.name for t in changed.graph.initializer], feeds) == (["x", "y"], [])
    assert not changed.graph.input


@pytest.mark.parametrize(
    ("found", "expected", "says"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), ""),
        (np.float32([1, 2]), np.float32([1, 2.1]), "Mismatched elements"),
        (np.float32([1]), np.float64([1]), "element type"),
        (np.float32([1]), np.float32([[1]]), "shape"),
        (np.float32([np.nan]), np.float32([np.nan]), ""),
        ([np.float32([1])], [np.float32([1])], ""),
        (np.float32([1]), None, "absent"),
    ],
)
def test_comparison_follows_the_rules_of_onnx(found: Any, expected: Any, says: str) -> None:
    why = mismatch([found], [expected], 1e-3, 1e-7)
    assert says in why
    assert bool(says) == bool(why)


def test_outcomes_without_rounding() -> None:
    arrays = [np.float16([1, 2]), np.float16([2**-12, 2**-12])]
    half = model(2)
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    (faults,) = exact(half, arrays, [np.zeros(2)]) or []
    assert faults.tolist() == [1 + 2**-12, 2 + 2**-12]
    assert exact(half, [["a list"]], []) is None


def row(name: str, outcome: str) -> dict[str, Any]:
    why = "" if outcome == "pass" else "said"
    return {"name": name, "category": "core", "outcome": outcome, "why": why}


def test_exactly_the_listed_cases_fail() -> None:
    expected = Expected({"r": "refused", "p": "refused", "near": "exact", "far": "exact"})
    entries = [
        row("r", "refused"), row("p", "pass"), row("other", "refused"), row("good", "pass"),
        row("near", "exact"), row("far", "wrong"),
    ]  # fmt: skip
    assert expected.complaints({entry["name"]: entry for entry in entries}) == [
        "far: wrong: said",
        "other: refused: said",
        "p: passes, but is listed as refused",
    ]


def test_results_of_other_code_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    write_rows(path, "key", {"a": row("a", "pass")})
    assert read_rows(path, "key") == {"a": row("a", "pass")}
    assert read_rows(path, "other") == {}
    assert [p.name for p in path.parent.iterdir()] == ["rows.jsonl"]


def test_the_expected_list_can_be_read() -> None:
    expected = read_expected(Path(__file__).with_name("expected.toml"), "static", 3)
    assert len(expected.outcomes) < 48
    assert set(expected.outcomes.values()) <= set(OUTCOMES)


def test_the_table_counts() -> None:
    lines = table([row("a", "pass"), row("b", "hang"), row("c", "pass")], list(OUTCOMES))
    assert lines.splitlines()[-1].split() == ["all", "3", "2", "-", "-", "-", "-", "-", "1", "-"]
