"""A BERT layer that is divided between ranks, exported from torch, agrees with the whole layer.

Two ranks divide heads and neurons; a mesh of two times two ranks divides the batch too.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

RANKS = 2


@contextmanager
def ranks(size: int, rank: int) -> Iterator[None]:
    """Starts a process group that computes nothing: an export only records its collectives."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Rows(nn.Module):
    """A linear layer with a rank's rows of a matrix: an all_reduce sums the parts of all ranks
    before the bias is added."""

    def __init__(self, whole: nn.Linear, rank: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.chunk(RANKS, 1)[rank].clone())
        self.bias = whole.bias
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        part = nn.functional.linear(x, self.weight)
        return functional.all_reduce(part, "sum", self.group) + self.bias


def columns(whole: nn.Linear, rank: int) -> nn.Linear:
    layer = nn.Linear(whole.in_features, whole.out_features // RANKS)
    layer.weight = nn.Parameter(whole.weight.chunk(RANKS)[rank].clone())
    layer.bias = nn.Parameter(whole.bias.chunk(RANKS)[rank].clone())
    return layer


def divided(layer: Any, rank: int, group: dist.ProcessGroup) -> nn.Module:
    """Returns a rank's share of the layer, with an all_reduce after attention and after the
    neurons."""
    copy_of_layer = copy.deepcopy(layer)
    heads = copy_of_layer.attention.self
    heads.num_attention_heads //= RANKS
    heads.all_head_size //= RANKS
    for name in ("query", "key", "value"):
        setattr(heads, name, columns(getattr(heads, name), rank))
    copy_of_layer.attention.output.dense = Rows(layer.attention.output.dense, rank, group)
    copy_of_layer.intermediate.dense = columns(layer.intermediate.dense, rank)
    copy_of_layer.output.dense = Rows(layer.output.dense, rank, group)
    return copy_of_layer


def bert_layer(hidden: int) -> nn.Module:
    """Returns a layer with random weights.

    The function imports transformers, because the import takes seconds and all workers collect this
    file.
    """
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = bert.BertConfig(
        hidden_size=hidden,
        num_attention_heads=4,
        intermediate_size=2 * hidden,
        attn_implementation="sdpa",
    )
    torch.manual_seed(4)
    layer: nn.Module = bert.BertLayer(config).eval()
    return layer


def whole(layer: nn.Module, x: Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        output = layer(x)
    return np.asarray(output if isinstance(output, Tensor) else output[0])


def check(results: Sequence[Mapping[str, Any]], want: np.ndarray[Any, Any]) -> None:
    """Checks that all ranks have one result, bit for bit, and that it is the whole layer's."""
    arrays = [array for outputs in results for array in outputs.values()]
    assert len(arrays) == len(results)
    for array in arrays:
        np.testing.assert_allclose(array, want, rtol=0, atol=1e-5 * np.abs(want).max())
        np.testing.assert_array_equal(array, arrays[0])


def test_a_layer_on_two_ranks(comm_library: Path, tmp_path: Path) -> None:
    layer, x = bert_layer(128), torch.randn(2, 11, 128)
    with ranks(RANKS, 0):
        for rank in range(RANKS):
            program = torch.export.export(divided(layer, rank, dist.group.WORLD), (x,))
            program_or_path = program
            if rank:  # rank 0 is compiled from the program, rank 1 from an archive
                program_or_path = tmp_path / "layer.pt2"
                torch.export.save(program, program_or_path)
            compile_model(program_or_path, read_options({"jobs": 1}), tmp_path / f"layer{rank}.so")
    feeds = {str(program.graph_signature.user_inputs[0]): x.numpy()}
    outputs = on_ranks(tmp_path, comm_library, {"layer{rank}": [feeds] * RANKS})["layer{rank}"]
    check(outputs, whole(layer, x))


# ---- a mesh --------------------------------------------------------------------------------------


class Gathered(nn.Module):
    """Gathers the results for the batch parts of all ranks of a group."""

    def __init__(self, layer: nn.Module, group: Any) -> None:
        super().__init__()
        self.layer, self.group = layer, group

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y = y if isinstance(y, Tensor) else y[0]
        return functional.all_gather_tensor(y, 0, self.group)


class Part(nn.Module):
    """A linear layer whose rank takes its columns or rows of a whole matrix; parts by rows are
    summed."""

    def __init__(self, whole: nn.Linear, mesh: DeviceMesh, axis: int) -> None:
        super().__init__()
        self.whole, self.mesh, self.axis = whole, mesh, axis

    def forward(self, x: Tensor) -> Tensor:
        # torch itself uses it where it divides tensors
        size, place = self.whole.weight.shape[self.axis] // RANKS, self.mesh._sym_get_coordinate(0)
        weight = self.whole.weight.narrow(self.axis, place * size, size)
        if self.axis:
            part = nn.functional.linear(x, weight)
            return functional.all_reduce(part, "sum", self.mesh) + self.whole.bias
        return nn.functional.linear(x, weight, self.whole.bias.narrow(0, place * size, size))


def placed(layer: nn.Module, mesh: DeviceMesh) -> Any:
    """Returns the layer with a share that depends on the rank that runs it."""
    copy_of_layer = divided(layer, 0, dist.group.WORLD)
    heads, original = copy_of_layer.attention.self, layer.attention.self
    for name in ("query", "key", "value"):
        setattr(heads, name, Part(getattr(original, name), mesh, 0))
    copy_of_layer.attention.output.dense = Part(layer.attention.output.dense, mesh, 1)
    copy_of_layer.intermediate.dense = Part(layer.intermediate.dense, mesh, 0)
    copy_of_layer.output.dense = Part(layer.output.dense, mesh, 1)
    return copy_of_layer


DIMENSIONS = ("data", "tensor")


def test_a_mesh_of_ranks(comm_library: Path, tmp_path: Path) -> None:
    """All ranks run one artifact, which takes their shares by rank."""
    layer, x = bert_layer(64), torch.randn(2, 11, 64)
    with ranks(4, 2), dist.config.patch(compile_on_one_rank=True):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=DIMENSIONS)
        model = Gathered(placed(layer, mesh["tensor"]), (mesh, 0))
        program = torch.export.export(model, (x[:1],))
        compile_model(program, read_options({"jobs": 1}), tmp_path / "one.so")
    name = str(program.graph_signature.user_inputs[0])
    feeds = [{name: x[rank // 2 : rank // 2 + 1].numpy()} for rank in range(4)]
    check(on_ranks(tmp_path, comm_library, {"one": feeds})["one"], whole(layer, x))


def test_artifacts_of_ranks_of_a_mesh(comm_library: Path, tmp_path: Path) -> None:
    """Each rank has an artifact of its own shares and groups, for any number of rows, with a bucket
    of three rows."""
    torch.manual_seed(5)
    first, second = nn.Linear(16, 64), nn.Linear(64, 16)
    x = torch.randn(6, 16)
    for rank in range(4):
        with ranks(4, rank):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=DIMENSIONS)
            part = Rows(second, rank % 2, mesh.get_group("tensor"))
            share = nn.Sequential(columns(first, rank % 2), nn.ReLU(), part)
            model = Gathered(share, mesh.get_group("data"))
            rows = {"x": {0: torch.export.Dim("rows")}}
            program = torch.export.export(model, (x[:2],), dynamic_shapes=rows)
            options = read_options({"jobs": 1, "buckets": {"rows": [3]}})
            compile_model(program, options, tmp_path / f"own{rank}.so")
            os.link(tmp_path / f"own{rank}.so", tmp_path / f"same{rank}.so")
    feeds, other_feeds = (
        [{"x": x[rank // 2 * n : rank // 2 * n + n].numpy()} for rank in range(4)] for n in (3, 2)
    )
    outputs = on_ranks(tmp_path, comm_library, {"own{rank}": feeds, "same{rank}": other_feeds})
    with torch.no_grad():
        reference = np.asarray(second(torch.relu(first(x))))
    check(outputs["own{rank}"], reference)
    check(outputs["same{rank}"], reference[:4])
