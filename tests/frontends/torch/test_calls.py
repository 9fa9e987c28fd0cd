"""Modules take the arguments of the program from which they were compiled: nested, or complex
arrays."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
from tcc.errors import UserError
from tcc.frontends import load_called, load_model
from tcc.ir.graph.evaluate import evaluate_graph

from .torch_samples import Call, export

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        yield


def drawn(seed: int, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---- nested arguments ----------------------------------------------------------------------------


class Nested(torch.nn.Module):
    def forward(
        self, xs: Any, options: Any, *, scale: Any = None, mask: Any = None, times: int = 2
    ) -> Any:
        result = xs[0] * options["a"] + xs[1][0]
        return (result if scale is None else result * scale) * times


def test_arguments_are_nested_as_in_the_export(tmp_path: Path) -> None:
    x = [drawn(n, 3) for n in range(5)]
    nested = ([x[0], (x[1],)], {"a": x[2], "b": x[3]})
    program = torch.export.export(
        Nested(), nested, {"scale": x[4], "mask": None, "times": 3}, strict=False
    )
    torch.export.save(program, tmp_path / "m.pt2")
    reference = program.module()(*nested, scale=x[4], mask=None, times=3)
    assert load_called(program)[1] == load_called(tmp_path / "m.pt2")[1]
    module = tcc.compile(tmp_path / "m.pt2", jobs=1, level=1)
    for output in (
        module(*nested, scale=x[4], mask=None, times=3),
        module([x[0], [x[1]]], nested[1], scale=x[4]),
        module(*x),
        module(xs_0=x[0], xs_1_0=x[1], options_a=x[2], options_b=x[3], scale=x[4]),
    ):
        torch.testing.assert_close(output, reference)
    with pytest.raises(UserError, match=r"arguments\[1\] has the keys 'a', due are 'a', 'b'"):
        module(nested[0], {"a": x[2]}, scale=x[4])
    with pytest.raises(UserError, match="call module") as caught:
        module(*nested)
    assert "the argument scale is missing" in str(caught.value)
    module.save(tmp_path / "m.so")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, tcc\n"
        f"m = tcc.load({str(tmp_path / 'm.so')!r})\n"
        "x = [np.full(3, n, np.float32) for n in range(5)]\n"
        "print(m([x[0], (x[1],)], {'a': x[2], 'b': x[3]}, scale=x[4]).tolist())"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "[12.0, 12.0, 12.0]\n", process.stderr


def test_plain_arguments_are_not_written_down() -> None:
    module = tcc.compile(export(Call(lambda x, y: x + y), *[torch.ones(2)] * 2), jobs=1, level=1)
    assert "call" not in module.manifest
    one = np.ones(2, np.float32)
    np.testing.assert_array_equal(module(one, inputs_1=one), one * 2)
    with pytest.raises(UserError, match="both by position and by name"):
        module(one, inputs_0=one)


# ---- complex arrays ------------------------------------------------------------------------------


class Rotary(torch.nn.Module):
    """Rotary embeddings as in Llama's own code."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        rates = 1.0 / (10000.0 ** (torch.arange(0, 8, 2)[:4].float() / 8))
        table = torch.polar(torch.ones(12, 4), torch.outer(torch.arange(12).float(), rates))
        if kept:
            self.register_buffer("table", table)
        else:
            self.table = table

    def forward(self, x: Any, start: Any) -> Any:
        at = start + torch.arange(x.shape[1])
        turns = self.table.index_select(0, at).view(1, x.shape[1], 1, 4)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


@pytest.mark.parametrize("kept", [True, False])
def test_rotary_embeddings(kept: bool, tmp_path: Path) -> None:
    """The table of complex numbers is a buffer, or a constant of the program."""
    net = Rotary(kept)
    x, start = drawn(0, 2, 6, 3, 8), torch.tensor(3)
    shapes = {"x": {1: torch.export.Dim("length", min=2, max=9)}, "start": None}
    program = torch.export.export(net, (x, start), dynamic_shapes=shapes, strict=False)
    torch.export.save(program, tmp_path / "m.pt2")
    for model in (program, tmp_path / "m.pt2"):
        graph = load_model(model)
        for length in (6, 4):
            part = x[:, :length]
            outputs = evaluate_graph(graph, {"x": part.numpy(), "start": start.numpy()})
            (have,) = outputs.values()
            torch.testing.assert_close(torch.as_tensor(have), net(part, start))
    if kept:
        module = tcc.compile(program, jobs=1, level=1)
        torch.testing.assert_close(module(x, start), net(x, start))


FUNCTIONS = (
    lambda c: c.abs(), lambda c: c.angle(), lambda c: c.real * 2, lambda c: c.imag + 1,
    lambda c: c.conj(), lambda c: c * c - (1 - 2j) * c + 0.5, lambda c: c / (c + 3),
    lambda c: 1 / c, lambda c: c**2, lambda c: c**-0.5, lambda c: torch.sqrt(c),
    lambda c: torch.log(c), lambda c: torch.exp(c), lambda c: torch.sgn(c), lambda c: c == c.conj(),
    lambda c: c != c.conj(), lambda c: torch.isnan(c), lambda c: torch.linalg.norm(c),
    lambda c: c.reshape(2, 6)[:, ::2], lambda c: c[None].expand(2, 3, 4).flip(2),
    lambda c: torch.cat([c, c.roll(1, 0)], 1), lambda c: torch.stack([c.T, c.T]),
    lambda c: c.masked_fill(c.real > 0, 2.0), lambda c: torch.where(c.imag > 0, c, 1 - 1j),
    lambda c: torch.ones_like(c) + torch.full((3, 4), 2 - 1j),
    lambda c: torch.nn.functional.pad(c, (1, 1), value=3.0),
    lambda c: c.index_put((torch.tensor([0, 2]),), c[:2]),
    lambda c: c.scatter(0, torch.zeros(1, 4, dtype=torch.long), c),
    lambda c: torch.nn.functional.embedding(torch.tensor([2, 0]), c),
    lambda c: torch.addmm(c[:, :3], c, c.T, beta=2, alpha=0.5), lambda c: c @ c.mH,
    lambda c: torch.nn.functional.linear(c, c, c[:, 0]), lambda c: torch.einsum("ij,kj->ik", c, c),
    lambda c: c.sum(0) + c.mean(), lambda c: c.view(torch.float32),
    lambda c: c.real.contiguous().view(torch.complex64), lambda c: c.to(torch.complex128),
    lambda c: torch.tensor(1j) * c, lambda c: torch.fft.fft(c),
)  # fmt: skip


def test_complex_tensors() -> None:
    """Complex inputs and results are real tensors with a last axis of two."""
    c = drawn(1, 3, 4, dtype=torch.complex64)
    graph = load_model(export(Call(lambda c: [function(c) for function in FUNCTIONS]), c))
    assert repr(graph.inputs[0].type) == "f32[3,4,2]"
    outputs = evaluate_graph(graph, {"inputs_0": torch.view_as_real(c).numpy()})
    for number, (have, function) in enumerate(zip(outputs.values(), FUNCTIONS, strict=True)):
        reference = function(c)
        reference = (
            torch.view_as_real(reference.resolve_conj()) if reference.is_complex() else reference
        )
        torch.testing.assert_close(
            torch.as_tensor(have),
            reference,
            rtol=1e-5,
            atol=1e-5,
            msg=lambda m, n=number: f"{n}: {m}",
        )


class Turning(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phase", torch.ones(3, dtype=torch.complex64))

    def forward(self, c: Any) -> Any:
        self.phase *= 1j
        return c * self.phase


def test_complex_arrays_are_given_whole() -> None:
    module = tcc.compile(export(Turning(), torch.ones(3, dtype=torch.complex64)), jobs=1, level=1)
    c, phase = drawn(2, 3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64)
    for turns in (1, 2):
        output, updated = module(phase, c)
        torch.testing.assert_close(torch.view_as_complex(output), c * 1j**turns)
        assert updated is phase
        torch.testing.assert_close(phase, torch.full((3,), 1j**turns))
    output, _ = module(np.ones((3, 2), np.float32), c.numpy()[::-1])
    assert isinstance(output, np.ndarray)
    reference = c.numpy()[::-1] * (1j - 1)
    atol = 1e-6 * np.abs(reference).max()
    np.testing.assert_allclose(output[..., 0] + 1j * output[..., 1], reference, rtol=0, atol=atol)


def test_complex_tensors_in_torch_compile() -> None:
    def turned(c: Any) -> Any:
        return c * torch.polar(torch.ones(3), torch.arange(3.0))

    c = drawn(3, 2, 3, dtype=torch.complex64)
    compiled = torch.compile(turned, backend=tcc.torch_backend, options={"jobs": 1, "level": 1})
    torch.testing.assert_close(compiled(c), turned(c))
