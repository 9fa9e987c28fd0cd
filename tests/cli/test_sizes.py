"""Sizes of generated inputs, and messages about sizes that an operator cannot take."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto
from onnx.helper import make_node as node
from tcc import cli
from tcc.cli.arrays import program_of
from tcc.errors import UserError
from tcc.runtime.program_sizes import fitting_shapes

from tests.lib.agreement import model_of, value

FLOAT = TensorProto.FLOAT
SILERO = Path(__file__).parents[2] / "../shared/models/silero_vad.onnx"


def windows(taps: dict[str, int]) -> onnx.ModelProto:
    """Returns a model of a signal [b, n], convolved in one of two branches, and a state [c, 2] with
    b = c."""
    branches = [
        onnx.helper.make_graph(
            [node("Conv", ["wide", f"{name}_w"], [name], name=name)],
            name, [], [value(name, FLOAT, None)],
        )
        for name in taps
    ]  # fmt: skip
    split = node("If", ["which"], ["one"], then_branch=branches[0], else_branch=branches[1])
    return model_of(
        [
            node("Unsqueeze", ["x", "axis"], ["wide"]),
            split,
            node("ReduceMax", ["one", "inner"], ["most"], keepdims=0, name="most"),
            node("Unsqueeze", ["most", "axis"], ["column"]),
            node("Concat", ["column", "state"], ["y"], name="joined", axis=1),
        ],
        [
            value("x", FLOAT, ["b", "n"]),
            value("state", FLOAT, ["c", 2]),
            value("which", TensorProto.BOOL, []),
        ],
        [value("y", FLOAT, ["b", 3])],
        {
            "axis": np.array([1], np.int64),
            "inner": np.array([1, 2], np.int64),
            **{f"{name}_w": np.ones((1, 1, k), np.float32) for name, k in taps.items()},
        },
    )


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sizes") / "m.so"
    tcc.compile(windows({"narrow": 5, "broad": 100}), jobs=1).save(path)
    return path


def test_made_up_sizes_are_ones_that_the_checks_of_all_branches_pass(artifact: Path) -> None:
    program = program_of(artifact)
    assert fitting_shapes(program, {}) == {0: (1, 128), 1: (1, 2), 2: ()}
    assert fitting_shapes(program, {0: (3, 200)}) == {1: (3, 2), 2: ()}
    assert fitting_shapes(program, {1: (2, 2), 2: ()}) == {0: (2, 128)}
    shapes = [fitting_shapes(program, {1: (n, 2)})[0] for n in (1, 2)]
    assert all(a[1] == b[1] for a, b in pairwise(shapes))


def test_run_names_the_inputs_that_it_made_up(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["run", str(artifact), "-i", "state=2x2=0"]) == 0
    said = capsys.readouterr().err
    assert said == "random values of seed 0: x=2x128xf32, which=bool; give others with --input\n"


@pytest.mark.parametrize("names", [("b", "n"), ("c", "m")])
def test_inputs_that_are_made_up_take_the_sizes_of_given_ones(
    names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generated mask gets the sizes of the given tokens, although its dims have other names."""
    model = model_of(
        [
            node("Cast", ["mask"], ["present"], to=TensorProto.INT64),
            node("Concat", ["ids", "present"], ["rows"], axis=0),
            node("Concat", ["ids", "present"], ["columns"], axis=1),
        ],
        [
            value("ids", TensorProto.INT64, ["b", "n"]),
            value("mask", TensorProto.BOOL, [*names]),
        ],
        [
            value("rows", TensorProto.INT64, ["r", "n"]),
            value("columns", TensorProto.INT64, ["b", "c"]),
        ],
    )
    path = tmp_path / "masked.onnx"
    onnx.save(model, path)
    assert cli.execute(["verify", str(path), "-i", "ids=2x16"]) == 0
    said = capsys.readouterr().err
    assert "ids=2x16, mask=2x16xbool" in said


@pytest.mark.parametrize("size", [0, 1, 3])
def test_sizes_below_a_window_are_the_error_of_its_operator(
    artifact: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-i", f"x=1x{size}=1", "-i", "state=1x2=1", "-i", "which=bool=1"]
    assert cli.execute(["run", str(artifact), *arguments]) == 2
    message = capsys.readouterr().err
    assert "narrow (Conv)" in message
    assert "because a window must not be larger than its padded image" in message
    module = tcc.load(artifact)
    arrays = {"x": np.ones((1, size), np.float32), "state": np.ones((1, 2), np.float32)}
    with pytest.raises(UserError, match=r"narrow \(Conv\)"):
        module.run({**arrays, "which": np.array(True)})
    with pytest.raises(UserError, match=r"broad \(Conv\)"):
        module.run({**arrays, "which": np.array(False)})


def test_sizes_only_have_to_fit_the_branch_that_runs(artifact: Path) -> None:
    x = np.arange(20, dtype=np.float32).reshape(2, 10)
    outputs = tcc.load(artifact).run(
        {"x": x, "state": np.zeros((2, 2), np.float32), "which": np.array(True)}
    )
    reference = np.stack([x[:, -5:].sum(1), *np.zeros((2, 2))], 1)
    np.testing.assert_array_equal(outputs["y"], reference)


def test_a_speech_model_runs_on_made_up_inputs(
    silero: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["verify", str(SILERO), str(silero)]) == 0
    assert "random values of seed 0: input=2x" in capsys.readouterr().err
    assert cli.execute(["run", str(silero), "-i", "input=1x3xf32"]) == 2
    assert "stft/Conv (Conv): " in capsys.readouterr().err
    assert cli.execute(["run", str(silero), "-i", "sr=i64=16000", "-i", "state=2x3x128"]) == 0
    assert "input=3x224xf32" in capsys.readouterr().err
