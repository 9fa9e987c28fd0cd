"""Exported programs of torch: compiled ones agree with eager runs, others are refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tcc
from tcc.errors import TccError, UserError
from tcc.frontends import load_model
from tcc.ir.evaluate import evaluate_graph

torch = pytest.importorskip("torch")

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, at export
        torch.manual_seed(0)
        yield


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def export(module: Any, *inputs: Any, shapes: Any = None) -> Any:
    model = module.eval() if isinstance(module, torch.nn.Module) else Call(module)
    with torch.no_grad():
        return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)


def evaluated(module: Any, *inputs: Any) -> list[np.ndarray[Any, Any]]:
    """The results of the imported graph by the reference evaluator."""
    graph = load_model(export(module, *inputs))
    given = {v.name: t.numpy() for v, t in zip(graph.inputs, inputs, strict=True)}
    return list(evaluate_graph(graph, given).values())


def agree(module: Any, *inputs: Any) -> None:
    """Every result of eager torch is that of the imported graph, type and shape included."""
    wanted = module(*inputs)
    wanted = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    found = evaluated(module, *inputs)
    assert len(found) == len(wanted)
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(have), want, rtol=1e-5, atol=1e-5)


# One line for each kind of converter; all together are one program, which keeps the test quick.
POINTWISE = (
    lambda x, y: x + 2 * y,
    lambda x, y: torch.add(x, y, alpha=3),
    lambda x, y: 1.5 - x,
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y: torch.remainder(x, y),
    lambda x, y: torch.atan2(x, y),
    lambda x, y: torch.where(x > y, x, 0.0),
    lambda x, y: x.clamp(-0.5, 0.25),
    lambda x, y: (x > 0) & (y != 0),
    lambda x, y: torch.expm1(x) + torch.log1p(y.abs()),
    lambda x, y: F.softplus(x, 2.0, 1.0) + F.elu(y) + F.hardtanh(x) + F.silu(y),
    lambda x, y: F.gelu(x, approximate="tanh") + F.glu(torch.cat([x, y], -1)),
    lambda x, y: torch.copysign(x, y) + torch.fmax(x, y) + torch.logaddexp(x, y),
    lambda x, y: (x * 10).int() // 3 + (y * 10).int() % 4,
)
MOVEMENT = (
    lambda x, y: x.reshape(-1, 3)[1:, ::2].transpose(0, 1),
    lambda x, y: torch.stack([x, y], 1).flip(1).roll(1, -1),
    lambda x, y: torch.cat([x, y.repeat(2, 1)], 0).unfold(1, 3, 2),
    lambda x, y: F.pad(x, (1, -1, 2, 0), value=0.5),
    lambda x, y: F.pad(x[None], (1, 1), mode="reflect"),
    lambda x, y: x.tril(-1) + x.repeat_interleave(2, 1)[:, :6] + x.diagonal(1).sum(),
    lambda x, y: x[:, [0, -1]] + x[torch.tensor([[0], [2]]), torch.tensor([1, 2])][0],
    lambda x, y: x.index_put((torch.tensor([0, 2]),), y[:2], accumulate=True),
    lambda x, y: x.scatter_add(1, (y > 0).long(), y) + torch.gather(x, 0, (y < 0).long()),
    lambda x, y: torch.slice_scatter(x, y[:, :3], 1, 0, 6, 2),
    lambda x, y: torch.sort(x, 1, descending=True)[0] + torch.topk(y, 6, 1)[0],
    lambda x, y: torch.argsort(x, 1) + F.one_hot((x > 0).long(), 6).sum(1),
    lambda x, y: torch.linspace(0, 1, 6) + torch.arange(0.0, 3.0, 0.5) + torch.eye(4, 6),
)
REDUCED = (
    lambda x, y: x.sum(), lambda x, y: x.mean(1, keepdim=True), lambda x, y: x.max(0)[1],
    lambda x, y: x.var(1) + y.std(1, unbiased=False), lambda x, y: (x > 2).any(),
    lambda x, y: torch.cummax(x, 1)[1], lambda x, y: torch.logcumsumexp(x, 0),
    lambda x, y: torch.linalg.vector_norm(x, 3, 1), lambda x, y: x.argmax(),
    lambda x, y: torch.softmax(x, 1) + F.log_softmax(y, 0), lambda x, y: x.cumsum(1).logsumexp(1),
    lambda x, y: F.layer_norm(x, (6,)) + F.rms_norm(y, (6,)), lambda x, y: x @ y.mT,
    lambda x, y: torch.einsum("ij,kj->ik", x, y),
    lambda x, y: torch.addmm(x[:, :4], x, y.T, beta=2),
)  # fmt: skip


def square(x: Any) -> Any:
    return x[:, :4] @ x[:, :4].mT + torch.eye(4)


# Signs of singular vectors are free.
LINALG = (
    lambda x, y: torch.linalg.inv(square(x)),
    lambda x, y: torch.linalg.solve(square(x), y),
    lambda x, y: torch.linalg.solve(square(x), y[:, 0]),
    lambda x, y: torch.linalg.solve(square(x), y.mT, left=False),
    lambda x, y: torch.linalg.lu(x)[0] @ torch.linalg.lu(x.mT)[2].mT,
    lambda x, y: torch.linalg.lu_factor_ex(torch.zeros(2, 3, 3))[2],
    lambda x, y: torch.linalg.lu_solve(*torch.linalg.lu_factor(square(x)), y, adjoint=True),
    lambda x, y: torch.linalg.slogdet(x[:, 1:5])[1] + torch.linalg.slogdet(x[:, :4])[0],
    lambda x, y: torch.linalg.det(x[:, :4]),
    lambda x, y: torch.linalg.cholesky(square(x)) + torch.linalg.cholesky(square(y), upper=True),
    lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(square(x))),
    lambda x, y: torch.linalg.qr(x.mT)[0] @ torch.linalg.qr(x)[1],
    lambda x, y: torch.linalg.qr(x.mT, mode="complete")[0],
    lambda x, y: torch.ormqr(*torch.geqrf(x.mT), y.mT, transpose=True),
    lambda x, y: torch.linalg.svdvals(x),
    lambda x, y: torch.linalg.svd(x)[0].abs() + torch.linalg.svd(x)[2][:4, :4].abs(),
    lambda x, y: torch.linalg.eigvalsh(square(x)) + torch.linalg.eigh(y[:, :4], "U")[0],
    lambda x, y: torch.linalg.pinv(x) + torch.linalg.pinv(y[:, :1] @ x[:1]),
    lambda x, y: torch.linalg.matrix_exp(3 * x[:, :4]) / 1e3,
    lambda x, y: torch.linalg.solve_triangular(y[:, :4] + 4 * torch.eye(4), x, upper=True),
    lambda x, y: torch.linalg.matrix_rank(y[:, :1] @ x[:1]),
    lambda x, y: F.pad(x[None], (-5, 2, 1, -3), mode="replicate"),
)
COMPLEX = (
    lambda x, y: torch.fft.rfft(x).abs() + torch.fft.rfft(y, norm="ortho").angle(),
    lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), 6),
    lambda x, y: torch.view_as_real(torch.fft.fft2(x, norm="forward")),
    lambda x, y: torch.view_as_real(torch.fft.ifft(torch.complex(x, y), dim=0) / (1 + 2j)),
    lambda x, y: torch.view_as_real(
        torch.polar(x, y).conj()[:, 1:].T / torch.complex(x, y)[:, 1:].T
    ),
    lambda x, y: torch.view_as_real(
        torch.exp(torch.complex(x, y)) @ torch.complex(y, x).T + x[:, :4]
    ),
    lambda x, y: torch.fft.hfftn(x, norm="ortho"),
    lambda x, y: torch.view_as_complex(x.reshape(4, 3, 2)).imag,
    lambda x, y: torch.angle(x),
)
SPECIAL = (
    lambda x, y: torch.special.chebyshev_polynomial_t(x, (y * 5).round()),
    lambda x, y: torch.special.shifted_chebyshev_polynomial_w(x, (y * 5).round()),
    lambda x, y: torch.special.chebyshev_polynomial_u(torch.tensor([1.0, -1.0]), torch.tensor(5)),
)  # fmt: skip


@pytest.mark.parametrize(
    "functions",
    [POINTWISE, MOVEMENT, REDUCED, LINALG, COMPLEX, SPECIAL],
    ids=["point", "move", "reduce", "linalg", "complex", "special"],
)
def test_operators(functions: Any) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    agree(Call(lambda x, y: [function(x, y) for function in functions]), x, y)


WINDOWS = (
    lambda x, w: F.conv2d(x, w, stride=2, padding=1),
    lambda x, w: F.conv2d(x, w[:, :1], groups=4, padding="same"),
    lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
    lambda x, w: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x, w: F.max_pool2d(x, 2, return_indices=True)[1],
    lambda x, w: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda x, w: F.adaptive_avg_pool2d(x, (3, 1)),
    lambda x, w: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    lambda x, w: F.interpolate(x, (5, 3)),
    lambda x, w: F.interpolate(x, (9, 4), mode="bicubic", align_corners=True),
    lambda x, w: F.group_norm(x, 2) + F.instance_norm(x),
    lambda x, w: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
    lambda x, w: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    lambda x, w: F.scaled_dot_product_attention(x[0], x[0], x[0], x[0, :, :, :8] > 0),
    lambda x, w: F.grid_sample(x, torch.tanh(w[:2, :, :2, :].transpose(1, 3))[..., :2]),
)


def test_windows() -> None:
    x, w = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    agree(Call(lambda x, w: [function(x, w) for function in WINDOWS]), x, w)


class Network(torch.nn.Module):
    """A parameter, a buffer, nested results and a result that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.register_buffer("shift", torch.randn(8))

    def forward(self, x: Any, *, scale: Any = None) -> Any:
        hidden = self.norm(F.relu(self.first(x)))
        hidden = hidden if scale is None else hidden * scale
        return {"hidden": hidden, "pair": [hidden + self.shift, None], "count": x.shape[0] * 2}


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
        wanted = network(x)
        assert isinstance(hidden, torch.Tensor)
        torch.testing.assert_close(hidden, wanted["hidden"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(shifted, wanted["pair"][0], rtol=1e-5, atol=1e-5)
        assert count == wanted["count"]
    with pytest.raises(UserError, match="at most 32"):
        module(torch.randn(33, 6))


def test_related_sizes_are_checked() -> None:
    half = torch.export.Dim("half", min=2, max=64)
    shapes = ({0: 2 * half}, {0: half})
    inputs = torch.randn(8, 3), torch.randn(4, 3)
    program = export(Call(lambda x, y: x.reshape(-1, 2, 3).sum(1) + y), *inputs, shapes=(shapes,))
    module = tcc.compile(program, jobs=1)
    x, y = torch.randn(12, 3), torch.randn(6, 3)
    torch.testing.assert_close(module(x, y), x.reshape(-1, 2, 3).sum(1) + y)
    with pytest.raises(TccError):
        module(x, y[:5])


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


def test_unsupported_operators_are_named_together() -> None:
    program = export(
        Call(lambda x: torch.linalg.eigvals(x).abs() + torch.rand(2)), torch.randn(2, 2)
    )
    with pytest.raises(UserError) as caught:
        load_model(program)
    assert "linalg_eig" in str(caught.value)
    assert "aten.rand" in str(caught.value)


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.seen += 1
        return x + self.seen


def test_updates_in_place_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="seen"):
        load_model(export(Counter(), torch.randn(3)))


def test_a_module_without_inputs_is_refused() -> None:
    with pytest.raises(UserError, match="example inputs"):
        load_model(Network())


def test_backend_of_torch_compile() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).eval()
    compiled = torch.compile(network, backend=tcc.torch_backend, options={"jobs": 1})
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-5)
        network[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), network(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match="gradients"):
        compiled(x)


def test_complex_results_are_refused() -> None:
    with pytest.raises(UserError, match="is complex"):
        load_model(export(lambda x: torch.fft.fft(x), torch.randn(3)))


def test_matrices_without_a_result_stop_the_run() -> None:
    with pytest.raises(UserError, match="no result for a matrix"):
        evaluated(torch.linalg.inv, torch.zeros(2, 2))
    with pytest.raises(UserError, match="no result for a matrix"):
        evaluated(torch.linalg.cholesky, -torch.eye(2))


def bessel(kind: str, order: int, x: float) -> float:
    """The value of a Bessel function in 40 digits: by its series, K and Y by their definition of
    two orders next to each other."""
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.dps = 40
    return float(getattr(mpmath, f"bessel{kind}")(order, x))


@pytest.mark.parametrize(
    ("function", "kind", "order"),
    [
        (torch.special.bessel_j0, "j", 0), (torch.special.bessel_j1, "j", 1),
        (torch.special.bessel_y0, "y", 0), (torch.special.bessel_y1, "y", 1),
        (torch.special.i0, "i", 0), (torch.special.i1, "i", 1),
        (torch.special.modified_bessel_k0, "k", 0), (torch.special.modified_bessel_k1, "k", 1),
    ],
)  # fmt: skip
def test_bessel_functions(function: Any, kind: str, order: int) -> None:
    x = [1e-20, 1e-3, 0.5, 1.9, 2.1, 5.5, 14.0, 24.9, 25.1, 60.0, 300.0]
    (found,) = evaluated(function, torch.tensor(x, dtype=torch.float64))
    wanted = np.array([bessel(kind, order, value) for value in x])
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)
