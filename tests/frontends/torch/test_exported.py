"""Compiled torch programs agree with eager runs; unsupported programs are refused by name."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import tcc
import torch
import torch.nn.functional as F
from tcc.errors import TccError, UserError
from tcc.frontends import load_model
from tcc.ir.graph.evaluate import evaluate_graph
from torch.export import Dim

from .torch_samples import (
    COMPLEX,
    LINALG,
    MOVEMENT,
    POINTWISE,
    REDUCED,
    WINDOWS,
    Call,
    Network,
    Recurrent,
    export,
)

# One worker loads and warms torch's export and its compiler.
pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        torch.manual_seed(0)
        yield


def evaluated(module: Any, *inputs: Any) -> list[np.ndarray[Any, Any]]:
    """Returns the results of the imported graph by the reference evaluator."""
    graph = load_model(export(module, *inputs))
    feeds = {v.name: t.numpy() for v, t in zip(graph.inputs, inputs, strict=True)}
    return list(evaluate_graph(graph, feeds).values())


def agree(module: Any, *inputs: Any) -> None:
    """Fails unless every result of the imported graph equals eager torch's, including type and
    shape."""
    references = module(*inputs)
    references = list(references) if isinstance(references, tuple | list) else [references]
    outputs = evaluated(module, *inputs)
    assert len(outputs) == len(references)
    for have, reference in zip(outputs, references, strict=True):
        torch.testing.assert_close(torch.as_tensor(have), reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "functions",
    [POINTWISE, MOVEMENT, REDUCED, LINALG, COMPLEX],
    ids=["point", "move", "reduce", "linalg", "complex"],
)
def test_operators(functions: Any) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    agree(Call(lambda x, y: [function(x, y) for function in functions]), x, y)


def test_recurrent_layers() -> None:
    agree(Recurrent(), torch.randn(4, 5, 6))


def test_windows() -> None:
    x, w = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    agree(Call(lambda x, w: [function(x, w) for function in WINDOWS]), x, w)


def test_numbers_beyond_f16() -> None:
    """Torch multiplies and divides in f32, so that a large f32 factor does not become infinity."""

    def factors(x: Any) -> Any:
        count = torch.tensor(70000)
        return [
            (1 - x) * -1e9, x * 70000.0, x / 1e5, x / 1e-9, 1e5 / x, x * count,
            x / count.float(), torch.div(x * 9, 1e5, rounding_mode="floor"),
        ]  # fmt: skip

    agree(Call(factors), torch.tensor([0.0, 1.0, 0.5, -2.0]).half())


def test_constants_are_the_programs_memory() -> None:
    network = Network()
    graph = load_model(export(network, torch.randn(3, 6)))
    arrays = [graph.constant(value) for value in graph.constants]
    for weight in (network.first.bias, network.shift):
        address = weight.data_ptr()
        assert address in [a.__array_interface__["data"][0] for a in arrays if a is not None]


def test_results_are_named_by_where_they_lie() -> None:
    graph = load_model(export(Network(), torch.randn(3, 6)))
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.outputs] == ["hidden", "pair_0", "count"]


def test_a_module_compiles_with_open_sizes() -> None:
    network = Network().eval()
    batch = torch.export.Dim("batch", min=2, max=32)
    x = torch.randn(4, 6)
    module = tcc.compile(network, inputs=(x,), dynamic_shapes={"x": {0: batch}}, jobs=1)
    for size in (2, 7):
        x = torch.randn(size, 6)
        hidden, shifted, count = module(x)
        reference = network(x)
        assert isinstance(hidden, torch.Tensor)
        torch.testing.assert_close(hidden, reference["hidden"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(shifted, reference["pair"][0], rtol=1e-5, atol=1e-5)
        assert count == reference["count"]
    with pytest.raises(UserError, match="at most 32"):
        module(torch.randn(33, 6))


@pytest.mark.parametrize("named", [False, True])
def test_a_size_that_torch_traced_as_at_least_two_may_be_one(named: bool) -> None:
    """Torch's own program accepts size 1 too, because it does not check the bound."""
    dim = torch.export.Dim("n", min=2) if named else torch.export.Dim.DYNAMIC
    call = Call(lambda x, y: torch.softmax(x + y, 0).sum(-1) * x.shape[0])
    inputs = torch.randn(3, 4), torch.randn(3, 4)
    program = export(call, *inputs, shapes=(({0: dim}, {0: dim}),))
    module = tcc.compile(program, jobs=1)
    for size in (1, 2, 5):
        x, y = torch.randn(size, 4), torch.randn(size, 4)
        torch.testing.assert_close(module(x, y), program.module()(x, y))


def test_related_sizes_are_checked() -> None:
    half = torch.export.Dim("half", min=2, max=64)
    shapes = ({0: 2 * half}, {0: half})
    inputs = torch.randn(8, 3), torch.randn(4, 3)
    program = export(Call(lambda x, y: x.reshape(-1, 2, 3).sum(1) + y), *inputs, shapes=(shapes,))
    named = [value.type.shape[0].key for value in load_model(program).inputs]
    assert named == ["2*half", "half"]
    module = tcc.compile(program, jobs=1)
    x, y = torch.randn(12, 3), torch.randn(6, 3)
    torch.testing.assert_close(module(x, y), x.reshape(-1, 2, 3).sum(1) + y)
    with pytest.raises(TccError):
        module(x, y[:5])


def test_open_sizes_times_fractions() -> None:
    def resized(x: Any) -> Any:
        return [F.interpolate(x, scale_factor=factor) for factor in (1.5, 0.25, 2.0)]

    auto = torch.export.Dim.AUTO
    graph = load_model(export(Call(resized), torch.randn(1, 2, 12), shapes=(({2: auto},),)))
    for size in (12, 19, 31):
        x = torch.randn(1, 2, size)
        outputs = evaluate_graph(graph, {graph.inputs[0].name: x.numpy()})
        for have, reference in zip(outputs.values(), resized(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(have), reference)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_open_sizes_are_scaled_in_f64(mode: str, again: bool) -> None:
    """In f64, 0.7 * 90 is less than 63, and the ceiling of 0.07 * 100 is 8."""

    def resized(x: Any) -> Any:
        up = F.interpolate(x, scale_factor=0.7, mode=mode, recompute_scale_factor=again or None)
        return up, up[:, :, : math.ceil(0.07 * x.shape[2])]

    program = export(Call(resized), torch.randn(1, 2, 50), shapes=(({2: torch.export.Dim.AUTO},),))
    graph = load_model(program)
    for size in (50, 90, 100):
        x = torch.randn(1, 2, size)
        outputs = evaluate_graph(graph, {graph.inputs[0].name: x.numpy()})
        for have, reference in zip(outputs.values(), resized(x), strict=True):
            # torch computes the positions in f32
            torch.testing.assert_close(torch.as_tensor(have), reference, rtol=1e-4, atol=1e-4)
    x = torch.randn(1, 2, 90)
    (fixed, _) = evaluated(Call(resized), x)
    assert fixed.shape == (1, 2, 62)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_places_are_those_of_torch(mode: str) -> None:
    # Sizes at which f32 gives other positions than integers do.
    for size, new_size in (((2, 14), (82, 46)), ((60, 62), (14, 56)), ((7, 12), (82, 18))):
        x = torch.arange(float(size[0] * size[1])).view(1, 1, *size)
        agree(Call(lambda x, new_size=new_size: F.interpolate(x, new_size, mode=mode)), x)
    agree(Call(lambda x: F.interpolate(x, scale_factor=(1.7, 0.35), mode=mode)), x)


def test_sizes_that_data_decide() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [3.0, 4.0]])
    agree(Call(lambda x: (torch.nonzero(x), x[x > 1])), x)


def test_shapes_are_fixed_by_name() -> None:
    size = torch.export.Dim("size", min=1, max=64)
    program = export(Call(lambda x: x * 2), torch.randn(3, 4), shapes=(({0: size},),))
    graph = load_model(program, {"inputs_0": (5, 4)})
    assert [v.type.static_shape for v in graph.outputs] == [(5, 4)]
    with pytest.raises(UserError, match="contradicts"):
        load_model(program, {"inputs_0": (5, 3)})
    with pytest.raises(UserError, match="no input 'z'"):
        load_model(program, {"z": (5, 3)})


def test_views_as_another_type_are_refused() -> None:
    with pytest.raises(UserError, match="reads the bits of elements"):
        load_model(export(Call(lambda x: x.view(torch.int32) >> 23), torch.randn(3)))


def test_unsupported_operators_are_named_together() -> None:
    program = export(
        Call(lambda x: torch.linalg.eigvals(x).abs() + torch.poisson(x)), torch.randn(2, 2)
    )
    with pytest.raises(UserError) as caught:
        load_model(program)
    assert "linalg_eig" in str(caught.value)
    assert "aten.poisson" in str(caught.value)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return x + self.seen


def test_buffers_that_are_updated_are_states() -> None:
    graph = load_model(export(Counter(), torch.randn(3)))
    assert [v.name for v in graph.inputs] == ["seen", "x"]
    assert [(new.name, old.name) for new, old in graph.aliases] == [("seen.updated", "seen")]
    outputs = evaluate_graph(graph, {"seen": np.float32(4), "x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(outputs["output"], np.full(3, 6, np.float32))
    assert outputs["seen.updated"] == 5


def test_a_branch() -> None:
    program = export(Call(lambda x: torch.cond(x.sum() > 0, _twice, _less, (x,))), torch.ones(3))
    graph = load_model(program)
    for x in (np.ones(3, np.float32), -np.ones(3, np.float32)):
        reference = x * 2 if x.sum() > 0 else x - 1
        np.testing.assert_array_equal(evaluate_graph(graph, {"inputs_0": x})["output"], reference)


def _twice(x: Any) -> Any:
    return x * 2


def _less(x: Any) -> Any:
    return x - 1


def test_a_norm_over_axes_of_one_element_compiles() -> None:
    def response(x: Any) -> Any:
        size = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        return x * (size / (size.mean(-1, keepdim=True) + 1e-6)) + x

    x = torch.randn(2, 1, 1, 8)
    module = tcc.compile(export(Call(response), x), jobs=1)
    torch.testing.assert_close(module(x), response(x), rtol=1e-5, atol=1e-5)


def test_products_with_matrices_that_data_choose() -> None:
    """Expert layers call it this way: consecutive rows share a matrix."""
    graph = load_model(export(Call(_runs), torch.randn(7, 8), torch.randn(3, 8, 8), _ENDS))
    x = np.arange(56, dtype=np.float32).reshape(7, 8) % 5
    w = np.ones((3, 8, 8), np.float32) * np.arange(1, 4, dtype=np.float32)[:, None, None]
    feeds = {"inputs_0": x, "inputs_1": w, "inputs_2": np.array([2, 2, 6], np.int32)}
    (output,) = evaluate_graph(graph, feeds).values()
    scale = np.array([1, 1, 3, 3, 3, 3, 0])[:, None]
    np.testing.assert_array_equal(output, x.sum(1, keepdims=True) * scale * np.ones(8))


_ENDS = torch.tensor([2, 4, 7], dtype=torch.int32)


def _runs(x: Any, w: Any, ends: Any) -> Any:
    return torch.ops.aten._grouped_mm(x.bfloat16(), w.bfloat16(), ends).float()


def test_a_module_without_inputs_is_refused() -> None:
    with pytest.raises(UserError, match="example inputs"):
        load_model(Network())


def test_a_slice_that_data_choose() -> None:
    """torch asserts a storage offset, which has no meaning in a compiled program."""

    def part(x: Any, start: Any) -> Any:
        return torch.arange(10.0)[start.item() : (start + x.shape[0]).item()].unsqueeze(0) * 2

    x, start = torch.ones(4), torch.tensor(2)
    shapes = (({0: torch.export.Dim.AUTO}, None),)
    program = export(Call(part), x, start, shapes=shapes)
    assert "sym_storage_offset" in str(program.graph)
    module = tcc.compile(program, jobs=1, level=1)
    for size in (4, 7):
        output = module(np.ones(size, np.float32), np.array(2))
        np.testing.assert_array_equal(output, part(torch.ones(size), start).numpy())


class TwoNames(torch.nn.Module):
    """A buffer that the module updates through another attribute, as static caches are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 3))
        self.layers = {"cache": self.cache}

    def forward(self, x: Any, at: Any) -> Any:
        self.layers["cache"].index_copy_(0, at, x)
        return self.layers["cache"].sum(0) + self.cache[0]


def test_a_constant_with_two_names_is_one_state() -> None:
    network, eager = TwoNames(), TwoNames()
    program = export(network, torch.ones(1, 3), torch.tensor([1]))
    names = set(program.constants)
    module = tcc.compile(program, jobs=1, level=1)
    assert set(program.constants) == names
    memory = {port.name: np.zeros((4, 3), np.float32) for port in module.inputs[:-2]}
    assert len(memory) == 1
    for place in (2, 0, 2):
        x, at = torch.randn(1, 3), torch.tensor([place])
        outputs = module.run({"x": x.numpy(), "at": at.numpy(), **memory})
        np.testing.assert_allclose(outputs["output"], eager(x, at).numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(*memory.values(), eager.cache.numpy())


class SharedConstants(torch.nn.Module):
    """Two constants that share memory, and an input with the name of a Python builtin."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.tensor([1.0, 2.0, 3.0]))
        self.parts = [self.first, self.first.detach()]

    def forward(self, input: Any) -> Any:
        return input * self.first + self.parts[0] * self.parts[1]


def test_an_input_may_have_the_name_of_a_builtin_beside_shared_constants() -> None:
    program = export(SharedConstants(), torch.ones(3))
    module = tcc.compile(program, jobs=1, level=1)
    assert [port.name for port in module.inputs] == ["input"]
    x = torch.randn(3)
    output = module(x.numpy())
    np.testing.assert_allclose(output, SharedConstants()(x).numpy(), rtol=1e-6, atol=1e-6)


def test_backend_of_torch_compile() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).eval()
    compiled = torch.compile(network, backend=tcc.torch_backend, options={"jobs": 1})
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-5)
        network[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="gradients"):
        compiled(x).sum().backward()


def test_matrices_without_a_result_stop_the_run() -> None:
    with pytest.raises(UserError, match="no result for a matrix"):
        evaluated(torch.linalg.inv, torch.zeros(2, 2))
    with pytest.raises(UserError, match="no result for a matrix"):
        evaluated(torch.linalg.cholesky, -torch.eye(2))


def bessel(order: int, x: float) -> float:
    """Returns the modified Bessel function I of an order in 40 digits, by its series."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    return float(mpmath.besseli(order, x))


@pytest.mark.parametrize(("function", "order"), [(torch.special.i0, 0), (torch.special.i1, 1)])
def test_bessel_functions(function: Any, order: int) -> None:
    x = [1e-20, 1e-3, 0.5, 1.9, -2.1, 5.5, 14.0, 24.9, -25.1, 60.0, 300.0]
    (output,) = evaluated(function, torch.tensor(x, dtype=torch.float64))
    reference = np.array([bessel(order, value) for value in x])
    np.testing.assert_allclose(output, reference, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("inputs", "shapes", "place"),
    [
        ((torch.ones(1, 3),), ({0: Dim("n")},), "inputs['x'], axis 0"),
        ((torch.ones(1, 3),), {"x": (Dim.DYNAMIC, None)}, "inputs['x'], axis 0"),
        ({"x": torch.ones(2, 3), "y": [torch.ones(1, 3)]},
         {"x": {0: Dim("n")}, "y": [{0: Dim("m")}]}, "inputs['y'][0], axis 0"),
    ],
)  # fmt: skip
def test_an_example_of_size_one_is_named_where_the_size_is_symbolic(
    inputs: Any, shapes: Any, place: str
) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: Any, y: Any = ()) -> Any:
            return x + 1, *(item * 2 for item in y)

    with pytest.raises(UserError, match="torch cannot export Sum") as caught:
        tcc.compile(Sum(), inputs=inputs, dynamic_shapes=shapes)
    assert caught.value.where == place
    assert "takes 0 and 1 as fixed" in caught.value.why
