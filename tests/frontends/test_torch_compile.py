"""torch.compile(backend="tcc"): entry point, open sizes, broken graphs, memory that is shared."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tcc.errors import UserError
from tcc.frontends import captured, load_model
from tcc.ir.evaluate import evaluate_graph
from torch._dynamo.backends import registry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, at export
        torch.manual_seed(0)
        torch._dynamo.reset()
        yield


class Counted:
    """The backend with the reference evaluator, keeping the programs that it was asked for."""

    def __init__(self) -> None:
        self.programs: list[Any] = []

    def __call__(self, module: Any, examples: Any) -> Any:
        def compile(program: Any) -> Any:
            self.programs.append(program)
            graph = load_model(program)
            names = [value.name for value in graph.inputs]

            def run(*given: Any) -> Any:
                arrays = {name: x.numpy() for name, x in zip(names, given, strict=True)}
                found = evaluate_graph(graph, arrays).values()
                return tuple(torch.as_tensor(array) for array in found)

            return run

        return captured(module, examples, compile)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x).sum(1) * x.shape[0]


def test_the_entry_point_is_found_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, target),) = project["entry-points"]["torch_dynamo_backends"].items()
    folder = tmp_path / "tcc_wheel-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tcc-wheel\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.list_backends()  # reads the entry points that were there before
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    registry._discover_entrypoint_backends.__wrapped__()
    assert "tcc" in registry.list_backends()
    model = Scaled().eval()
    compiled = torch.compile(model, backend="tcc", options={"jobs": 1, "level": 0})
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_one_program_serves_sizes_that_are_marked_dynamic() -> None:
    backend, model = Counted(), Scaled().eval()
    compiled = torch.compile(model, backend=backend)
    with torch.inference_mode():
        for size in (5, 2, 9):
            x = torch.randn(size, 4)
            if size == 5:
                torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(backend.programs) == 1


def test_broken_graphs_numbers_and_guards() -> None:
    backend = Counted()

    def broken(x: Any, k: int) -> Any:
        y = torch.sin(x) * k
        y = y + 1 if y.sum() > 0 else y - 1
        return torch.cos(y) * y.shape[0], y.shape[0] + k

    compiled = torch.compile(broken, backend=backend)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(4), torch.ones(6)):
        found, wanted = compiled(x, 2), broken(x, 2)
        torch.testing.assert_close(found[0], wanted[0])
        assert found[1] == wanted[1]
    assert len(backend.programs) >= 4


def test_parameters_are_shared_without_a_copy() -> None:
    backend, model = Counted(), Scaled().eval()
    with torch.inference_mode():
        torch.compile(model, backend=backend)(torch.randn(3, 4))
    graph = load_model(backend.programs[0])
    arrays = [graph.constant(value) for value in graph.constants]
    addresses = [a.__array_interface__["data"][0] for a in arrays if a is not None]
    assert model.inner.bias.data_ptr() in addresses


def test_all_unsupported_operators_are_named() -> None:
    compiled = torch.compile(
        lambda x: torch.randn_like(x).multinomial(2) + torch.rand(2), backend=Counted()
    )
    with pytest.raises(UserError) as caught:
        compiled(torch.ones(2))
    assert "aten.multinomial" in str(caught.value)
    assert "aten.rand" in str(caught.value)
