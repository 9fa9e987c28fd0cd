"""An expert layer that is divided between ranks, exported from torch, agrees with the whole layer.

The router's counts decide how many rows each rank sends to the others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.ranks import on_ranks

torch = pytest.importorskip("torch")

# Imports of optional packages come after the check that the packages are installed.
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

# One worker loads the modules that export models.
pytestmark = pytest.mark.xdist_group("torch")

RANKS, EXPERTS, WIDTH, INNER = 2, 6, 8, 16
OWN = EXPERTS // RANKS
Array = np.ndarray[Any, np.dtype[Any]]


class Experts(nn.Module):
    """Sends a rank's tokens to the ranks of the router's best experts, and back."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER))
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight, expert = torch.softmax(self.router(x), -1).max(-1)
        order = torch.argsort(expert, stable=True)
        none = torch.zeros(EXPERTS, dtype=torch.int64)
        counts = none.scatter_add(0, expert, torch.ones_like(expert))
        theirs = functional.all_to_all_single(counts, None, None, self.mesh)
        sent, received = (n.view(RANKS, OWN).sum(1).tolist() for n in (counts, theirs))
        rows = functional.all_to_all_single(x[order], received, sent, self.mesh)
        numbers = torch.arange(OWN).repeat(RANKS)
        expert_numbers = numbers.repeat_interleave(theirs, output_size=rows.shape[0])
        back = functional.all_to_all_single(
            self.apply_own(rows, expert_numbers), sent, received, self.mesh
        )
        return back[torch.argsort(order)] * weight[:, None]

    def apply_own(self, rows: Tensor, own: Tensor) -> Tensor:
        first = self.mesh._sym_get_coordinate(0) * OWN
        up, down = (w.narrow(0, first, OWN) for w in (self.up, self.down))
        result = torch.zeros_like(rows)
        for k in range(OWN):
            result = torch.where((own == k)[:, None], torch.relu(rows @ up[k]) @ down[k], result)
        return result


def whole(layer: Experts, x: Array) -> Array:
    """Returns the result of the layer in float64, row by row."""
    parameters = {name: np.asarray(p.detach(), np.float64) for name, p in layer.named_parameters()}
    outputs = []
    for row in x.astype(np.float64):
        scores = parameters["router.weight"] @ row + parameters["router.bias"]
        best = int(scores.argmax())
        weight = 1 / np.exp(scores - scores[best]).sum()
        inner = np.maximum(row @ parameters["up"][best], 0)
        outputs.append(weight * (inner @ parameters["down"][best]))
    return np.array(outputs).reshape(x.shape)


def test_rows_go_to_experts_of_other_ranks(comm_library: Path, tmp_path: Path) -> None:
    """One artifact serves all ranks with different numbers of tokens, also if all tokens of a rank
    go to one expert."""
    torch.manual_seed(6)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        with dist.config.patch(compile_on_one_rank=True):
            layer = Experts(init_device_mesh("cpu", (RANKS,))).eval()
            tokens = {"x": {0: torch.export.Dim("tokens", min=1)}}
            program = torch.export.export(layer, (torch.randn(9, WIDTH),), dynamic_shapes=tokens)
            compile_model(program, read_options({"jobs": 1}), tmp_path / "experts.so")
    finally:
        dist.destroy_process_group()
    rng = np.random.default_rng(7)
    some = [rng.standard_normal((n, WIDTH)).astype(np.float32) for n in (13, 5)]
    one = [np.repeat(x[:1], n, 0) for x, n in zip(some, (4, 70), strict=True)]
    os.link(tmp_path / "experts.so", tmp_path / "one.so")
    feeds = {"experts": some, "one": one}
    outputs = on_ranks(
        tmp_path, comm_library, {name: [{"x": x} for x in xs] for name, xs in feeds.items()}
    )
    for name, xs in feeds.items():
        for x, results in zip(xs, outputs[name], strict=True):
            (y,) = results.values()
            reference = whole(layer, x)
            np.testing.assert_allclose(y, reference, rtol=0, atol=1e-5 * np.abs(reference).max())
