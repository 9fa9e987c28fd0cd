"""`scripts/operators --open` compares models with symbolic sizes to the same models with fixed
sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from beside import PairSettings, distance
from open_cases import OpenRow, Operator, measure, model_of, operators, summary
from tcc.options import read_options

CASES = list(operators())


@pytest.mark.parametrize("operator", CASES[: len(CASES) // 2], ids=lambda o: o.name)
def test_symbolic_sizes_give_the_results_of_fixed_sizes(operator: Operator) -> None:
    count, feed = operator.chain(3), operator.feed(3)
    outputs_of_models = []
    for size in (None, 3):
        model = model_of(operator, count, size)
        assert sum(node.op_type == operator.op for node in model.graph.node) == count == 8
        dims = model.graph.input[0].type.tensor_type.shape.dim
        assert sum(dim.dim_value == 0 for dim in dims) == (0 if size else operator.shape.count(0))
        session = onnxruntime.InferenceSession(model.SerializeToString())
        outputs_of_models.append(dict(enumerate(session.run(None, feed))))
    first, second = ({str(k): v for k, v in outputs.items()} for outputs in outputs_of_models)
    assert distance(first, second) < 1e-5
    assert len(first) == (8 if operator.own_inputs else 1)


def test_every_size_is_measured_in_every_round(tmp_path: Path) -> None:
    softmax = next(o for o in CASES if o.name == "softmax 64")
    plan = PairSettings(threads=1, rounds=2, seconds=1e-3)
    rows = list(measure(softmax, (1, 7), read_options({}), plan, tmp_path))
    assert [row.size for row in rows] == [1, 7]
    assert all(len(t) == 2 and min(t) > 0 for row in rows for t in (row.open, row.fixed, row.ort))
    assert max(row.difference for row in rows) < 1e-5
    assert len(list(tmp_path.glob("*.so"))) == 3  # one with symbolic sizes, and one for each size


def test_ratios_are_of_the_same_round() -> None:
    slow = OpenRow(
        "a", 1, open=(2e-6, 8e-6, 3e-6), fixed=(1e-6, 2e-6, 3e-6), ort=(1e-6,) * 3, difference=0
    )
    quick = OpenRow("b", 1, open=(1e-6,) * 3, fixed=(2e-6,) * 3, ort=(2e-6,) * 3, difference=0)
    assert (slow.loss, quick.loss) == (2.0, 0.5)
    assert not slow.slow  # with fixed sizes it is slower than ONNX Runtime too
    lines = list(summary([slow, quick]))
    assert lines[1].split() == ["a", "2.00", "2.00", "0"]
    assert lines[-1].split() == ["together", "1.00", "2.00", "0"]
