"""`tcc verify` runs archives of PyTorch and reports differences."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
from tcc import cli
from tcc.cli import reference
from tcc.cli.peers.torch import prepare
from tcc.errors import UserError
from tcc.frontends import replayed
from tcc.frontends.rounding import Rounding
from tcc.runtime.worker import write_arrays
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from tests.frontends.torch.torch_samples import forward_and_backward
from tests.lib.fuzz.hostile_archives import members, packed, program
from tests.processors import multiplies_bf16

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        logging.disable(logging.WARNING)
        yield
        logging.disable(logging.NOTSET)


class Sample(torch.nn.Module):
    """Complex and nested inputs of any batch, complex results, and a buffer that a run updates.

    `fault` names the part that a wrong artifact computes differently.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.fault = fault
        self.matrix = torch.nn.Parameter(torch.randn(4, 4, generator=generator))
        turn = torch.randn(4, dtype=torch.complex64, generator=generator)
        self.register_buffer("turn", turn.conj_physical() if "turn" in fault else turn)
        self.register_buffer("total", torch.eye(4))
        if "matrix" in fault:
            self.matrix.data[1, 2] *= -4

    def forward(self, pair: Mapping[str, torch.Tensor], more: Sequence[Any]) -> Any:
        y = torch.tanh(pair["x"] @ self.matrix) @ self.total * more[0]
        z = pair["z"] * self.turn + y
        parts = [z.real, z.imag] if "order" not in self.fault else [z.imag, z.real]
        self.total.add_(y.sum(0), alpha=2 if "total" in self.fault else 1)
        return {"y": y * more[1], "z": [z, *parts]}


def sample_inputs() -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(3, 4, generator=generator)
    z = torch.randn(3, 4, dtype=torch.complex64, generator=generator)
    return {"x": x, "z": z}, (torch.randn(4, generator=generator), 2)


def export(module: torch.nn.Module) -> ExportedProgram:
    batch = Dim("batch", min=2, max=64)
    shapes = ({"x": {0: batch}, "z": {0: batch}}, (None, None))
    return torch.export.export(module.eval(), sample_inputs(), dynamic_shapes=shapes)


def save(path: Path, program: ExportedProgram) -> Path:
    torch.export.save(program, path)
    return path


class Here:
    """A peer in this process: a separate process would take seconds to start."""

    def __init__(
        self, kind: str, model: Path, inputs: Any, threads: int, *, row: Any, cap: float
    ) -> None:
        assert kind == "PyTorch"
        feed = model.with_name("inputs.npz")
        write_arrays(feed, inputs)
        self._run = prepare(model, feed, threads, *row.arguments)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def outputs(self) -> Mapping[str, Any]:
        return self._run()


# ---- archives in torch ---------------------------------------------------------------------------


def agrees(path: Path, *inputs: Any, **states: Any) -> dict[str, Any]:
    """Fails unless the archive's calls, replayed one by one, give what torch computes for the
    archive.

    `states` are the buffers that a run updates.
    """
    run = replayed(str(path), Rounding())
    program = torch.export.load(path)
    names = [n for n in program.graph_signature.user_inputs if isinstance(n, str)]
    tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    pairs = [torch.view_as_real(x) if x.is_complex() else x for x in tensors]
    inputs_by_name = {n: x.numpy() for n, x in zip(names, pairs, strict=False)} | states
    for _ in range(2):  # a run leaves no state for the next run
        run({name: x + 1 if x.dtype.kind == "f" else x for name, x in inputs_by_name.items()})
        outputs = run(inputs_by_name)
        references = pytree.tree_leaves(torch.export.load(path).module()(*inputs))
        for number, leaf in enumerate(references):
            if isinstance(leaf, torch.Tensor):
                pair = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
                np.testing.assert_array_equal(outputs[str(number)], pair.detach().numpy())
    return outputs


def test_the_calls_of_an_archive_agree_with_torch(tmp_path: Path) -> None:
    path = save(tmp_path / "m.pt2", export(Sample()))
    outputs = agrees(path, *sample_inputs(), total=np.eye(4, dtype=np.float32))
    module = torch.export.load(path).module()
    module(*sample_inputs())
    np.testing.assert_array_equal(outputs["total.updated"], module.total.detach().numpy())


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.cond(x.sum() > 0, torch.sin, torch.neg, (x,))
        return first.permute(0, 2, 3, 1).reshape(2, -1) + 1


def test_branches_and_layouts_of_an_archive(tmp_path: Path) -> None:
    """The view is valid for channels-last inputs, as the example has."""
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(8))
    laid = x.to(memory_format=torch.channels_last)
    for number, example in enumerate((laid, -laid)):
        program = torch.export.export(Branch().eval(), (example,))
        agrees(save(tmp_path / f"{number}.pt2", program), example)


def test_the_loss_and_gradients_of_a_joint_program(tmp_path: Path) -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(x)).square().mean()

    torch.manual_seed(9)
    module, x = Loss(), torch.randn(5, 4)
    joint = forward_and_backward(torch.export.export(module, (x,)))
    run = replayed(str(save(tmp_path / "m.pt2", joint)), Rounding())
    loss = module(x)
    loss.backward()
    leaves = [loss.detach(), module.layer.weight.grad, module.layer.bias.grad]
    for array, due in zip(run({"x": x.numpy()}).values(), leaves, strict=True):
        np.testing.assert_allclose(array, due.numpy(), rtol=1e-5, atol=1e-6)


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("archives") / "m.pt2", export(Sample()))


def test_a_right_artifact_agrees_with_pytorch(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The peer runs in a separate process here."""
    artifact = archive.with_name("right.so")
    tcc.compile(archive, jobs=1).save(artifact)
    assert cli.execute(["verify", str(archive), str(artifact)]) == 0
    said = capsys.readouterr().out
    assert "f32, beside PyTorch in 40 runs" in said
    assert "5 of 5 outputs agree with PyTorch" in said


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        ("matrix", ["y", "z_0", "z_1", "total.updated"]),
        ("turn order total", ["z_0", "z_1", "z_2", "total.updated"]),
    ],
)
def test_a_wrong_artifact_fails(
    fault: str,
    wrong: list[str],
    archive: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tcc.cli.reference.Peer", Here)
    artifact = archive.with_name(f"{fault}.so")
    tcc.compile(export(Sample(fault)), jobs=1).save(artifact)
    assert cli.execute(["verify", str(archive), str(artifact), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["oracle"] == "PyTorch"
    assert [item["output"] for item in said["outputs"] if not item["ok"]] == wrong


class Layers(torch.nn.Module):
    """Layers whose operands a bf16 artifact rounds; an embedding also reads one weight, and the
    operand of one layer is added to its result."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(64, 64)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        y = x + torch.tanh(self.first(x)).reshape(-1, 64)
        return (y + self.second(y)) @ self.table.weight.t()


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(10)
        program = torch.export.export(Layers().eval(), (torch.arange(5),))
    path = save(tmp_path_factory.mktemp("layers") / "m.pt2", program)
    tcc.compile(path, jobs=1, precision="bf16").save(path.with_suffix(".so"))
    return path


@multiplies_bf16
def test_a_narrow_artifact_is_compared_with_rounded_layers(
    layers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcc.cli.reference.Peer", Here)
    assert cli.execute(["verify", str(layers), str(layers.with_suffix(".so")), "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"]
    assert output["error"] < 1e-5
    assert 1e-4 < output["cost"] < 1e-2


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_without_pytorch_the_text_names_the_evaluator_as_reference(
    precision: str,
    layers: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tcc.cli.reference.find_spec", lambda name: None)
    artifact = [str(layers.with_suffix(".so"))] if precision == "bf16" else []
    assert cli.execute(["verify", str(layers), *artifact]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "beside the reference evaluator in 10 runs" in said
    assert "tcc's own: PyTorch is not installed (pip install torch)" in said
    assert ("rounds weights alone" in said) == (precision == "bf16")


def test_the_evaluator_is_the_reference_for_calls_that_torch_cannot_repeat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    path = save(tmp_path / "m.pt2", torch.export.export(Noise(), (torch.zeros(3),)))
    assert cli.execute(["verify", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "PyTorch does not take its types or its random draws" in said


def test_a_failure_of_torch_is_named(
    archive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(reference._TORCH, module="tcc.no_such_module")
    monkeypatch.setattr("tcc.cli.reference._TORCH", row)
    assert cli.execute(["verify", str(archive)]) == 3
    said = capsys.readouterr().err
    assert "error: PyTorch failed" in said
    assert f"at: {archive}" in said
    assert "no_such_module" in said
    assert "to do: see whether PyTorch alone runs the model" in said


def test_torch_runs_no_call_that_an_import_refuses(tmp_path: Path) -> None:
    text = json.dumps(program()).replace("torch.ops.aten.mm.default", "torch.ops.aten.save.default")
    path = tmp_path / "m.pt2"
    path.write_bytes(packed(members(json.loads(text))))
    with pytest.raises(UserError, match="not supported") as caught:
        replayed(str(path), Rounding())
    assert "aten.save.default" in str(caught.value)
