"""torch.compile(backend="tcc"): entry point, symbolic sizes, graph breaks, shared memory."""

from __future__ import annotations

import gc
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tcc.dynamo import torch_backend
from tcc.errors import UserError
from tcc.frontends import captured, load_model
from tcc.ir.graph.evaluate import evaluate_graph

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        torch.manual_seed(0)
        torch._dynamo.reset()
        yield


class Counted:
    """A backend that runs the reference evaluator and records the programs that it compiles."""

    def __init__(self) -> None:
        self.programs: list[Any] = []

    def __call__(self, module: Any, examples: Any) -> Any:
        def compile(program: Any) -> Any:
            self.programs.append(program)
            graph = load_model(program)
            names = [value.name for value in graph.inputs]

            def run(*inputs: Any) -> Any:
                arrays = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
                outputs = evaluate_graph(graph, arrays).values()
                return tuple(torch.as_tensor(array) for array in outputs)

            return run

        return captured(module, examples, compile)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.inner(x).sum(1) * x.shape[0]


def test_the_entry_point_is_found_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    from torch._dynamo.backends import registry  # imports torch's compiler, which takes seconds

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
        outputs, reference = compiled(x, 2), broken(x, 2)
        torch.testing.assert_close(outputs[0], reference[0])
        assert outputs[1] == reference[1]
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
        lambda x: torch.poisson(x) + torch.linalg.eigvals(x).abs(), backend=Counted()
    )
    with pytest.raises(UserError) as caught:
        compiled(torch.ones(2, 2))
    assert "aten.poisson" in str(caught.value)
    assert "aten.linalg_eig" in str(caught.value)


def _native(function: Any, **options: Any) -> Any:
    return torch.compile(
        function, backend=torch_backend, options={"jobs": 1, "level": 0, **options}
    )


class Counting(torch.nn.Module):
    """Updates a buffer, and reads it after a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.seen.add_(x.sum(0))
        torch._dynamo.graph_break()
        return x + self.seen


class Ranked(torch.nn.Module):
    """Returns results of two element types, one of them without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return y, y.argmax(1), x.shape[0]


@pytest.mark.parametrize("learns", [False, True], ids=["parameters", "parameters and input"])
def test_inference_needs_no_block_without_gradients(learns: bool) -> None:
    model = Ranked().eval()
    compiled = _native(model)
    x = torch.randn(3, 4, requires_grad=learns)
    for _ in range(2):
        outputs, reference = compiled(x), model(x)
        torch.testing.assert_close(outputs, reference)
        assert [y.requires_grad for y in outputs[:2]] == [y.requires_grad for y in reference[:2]]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), reference)
        assert not compiled(x)[0].requires_grad


def test_gradients_are_refused_when_they_are_computed() -> None:
    model = Scaled().eval()
    y = _native(model)(torch.randn(3, 4))
    with pytest.raises(UserError) as caught:
        y.sum().backward()
    assert str(caught.value) == (
        "gradients of a model that tcc compiled are asked for\n"
        "  because: tcc compiles inference\n"
        "  to do: train the model before torch.compile, or compile it with another backend"
    )
    assert model.inner.weight.grad is None


def test_buffers_that_the_model_updates() -> None:
    eager, other = Counting(), Counting()
    compiled = _native(other)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3)
            torch.testing.assert_close(compiled(x), eager(x))
            torch.testing.assert_close(other.seen, eager.seen)


def test_inputs_updated_in_place_whatever_their_strides() -> None:
    def update(x: Any) -> None:
        x.mul_(2)

    compiled = _native(update)
    with torch.no_grad():
        for x in (torch.randn(3, 4), torch.randn(3, 4).t(), torch.randn(6, 8)[::2, 1::2]):
            reference, version = x * 2, x._version
            assert compiled(x) is None
            torch.testing.assert_close(x, reference)
            assert x._version > version


def test_inputs_that_overlap_are_refused_where_one_is_updated() -> None:
    compiled = torch.compile(
        lambda x, y: (x.add_(1), y * 1.0)[1],
        backend=torch_backend, options={"jobs": 1, "level": 0}, dynamic=False,
    )  # fmt: skip
    base = torch.arange(8.0)
    with torch.no_grad():
        compiled(torch.zeros(4), torch.zeros(4))
        torch.testing.assert_close(compiled(base[::2], base[1::2]), torch.tensor([1.0, 3, 5, 7]))
        with pytest.raises(UserError, match="share memory"):
            compiled(base[:4], base[2:6])
    torch.testing.assert_close(base, torch.tensor([1.0, 1, 3, 3, 5, 5, 7, 7]))


def test_new_weights_at_an_old_address_are_seen() -> None:
    model, memory = torch.nn.Linear(4, 4, bias=False), np.ones((4, 4), np.float32)
    compiled, x = _native(model), torch.randn(2, 4)
    model.weight.data = torch.from_numpy(memory)
    place = model.weight.untyped_storage()._cdata
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.data = torch.empty(0)
        gc.collect()  # torch's export leaves cycles that hold the old weights
        memory *= 2
        model.weight.data = _stored_at(place, memory)
        torch.testing.assert_close(compiled(x), model(x))


def _stored_at(place: int, memory: Any) -> Any:
    """Returns a tensor over an array; if possible, its storage object has the given address."""
    tensors = []
    for _ in range(1000):
        tensors.append(torch.from_numpy(memory))
        if tensors[-1].untyped_storage()._cdata == place:
            break
    return tensors[-1]


def test_weights_of_inference_mode_have_no_count_of_updates() -> None:
    with torch.inference_mode():
        model = torch.nn.Linear(4, 4)
        compiled, x = _native(model), torch.randn(2, 4)
        for _ in range(2):
            model.weight.mul_(2)
            torch.testing.assert_close(compiled(x), model(x))


def test_floats_that_change() -> None:
    def scaled(x: Any, s: float) -> Any:
        return x * s, s + 1

    compiled, x = torch.compile(scaled, backend=Counted()), torch.ones(3)
    with torch.no_grad():
        for s in (1.5, 2.5, 0.0, -0.0, float("nan")):
            torch.testing.assert_close(compiled(x, s), scaled(x, s), equal_nan=True)
            assert torch.equal(compiled(x, s)[0].signbit(), (x * s).signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_graphs_without_tensors_give_tensors(dtype: Any) -> None:
    with torch.no_grad():
        tensor = _native(lambda: torch.ones(2, 3, dtype=dtype))()
    torch.testing.assert_close(tensor, torch.ones(2, 3, dtype=dtype))
