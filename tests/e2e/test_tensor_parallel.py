"""A BERT layer whose heads and neurons are divided between two ranks, as torch exports it, agrees
with the whole layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.ranks import on_ranks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# What needs the optional packages comes after the question whether they are there.
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers.models.bert.modeling_bert import BertLayer  # noqa: E402

RANKS = 2


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A group of ranks that computes nothing: an export only records what is issued on it."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


class Rows(nn.Module):
    """A rank's rows of a matrix: all ranks' products are summed before the bias is added."""

    def __init__(self, whole: nn.Linear, rank: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(whole.weight.chunk(RANKS, 1)[rank].clone())
        self.bias = whole.bias
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        part = nn.functional.linear(x, self.weight)
        return functional.all_reduce(part, "sum", self.group) + self.bias


def columns(whole: nn.Linear, rank: int) -> nn.Linear:
    made = nn.Linear(whole.in_features, whole.out_features // RANKS)
    made.weight = nn.Parameter(whole.weight.chunk(RANKS)[rank].clone())
    made.bias = nn.Parameter(whole.bias.chunk(RANKS)[rank].clone())
    return made


def divided(layer: BertLayer, rank: int, group: dist.ProcessGroup) -> BertLayer:
    """A rank's share: two sums over ranks, behind attention and behind the neurons."""
    made = copy.deepcopy(layer)
    heads = made.attention.self
    heads.num_attention_heads //= RANKS
    heads.all_head_size //= RANKS
    for name in ("query", "key", "value"):
        setattr(heads, name, columns(getattr(heads, name), rank))
    made.attention.output.dense = Rows(layer.attention.output.dense, rank, group)
    made.intermediate.dense = columns(layer.intermediate.dense, rank)
    made.output.dense = Rows(layer.output.dense, rank, group)
    return made


def test_a_layer_on_two_ranks(group: dist.ProcessGroup, comm_library: Path, tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=128, num_attention_heads=4, intermediate_size=256, attn_implementation="sdpa"
    )
    torch.manual_seed(4)
    layer, x = BertLayer(config).eval(), torch.randn(2, 11, 128)
    for rank in range(RANKS):
        program = torch.export.export(divided(layer, rank, group), (x,))
        given = program
        if rank:  # one is compiled as torch has it, one as its archive has it
            given = tmp_path / "layer.pt2"
            torch.export.save(program, given)
        compile_model(given, read_options({"jobs": 1}), tmp_path / f"layer{rank}.so")
    name = program.graph_signature.user_inputs[0]
    feeds = {str(name): x.numpy()}
    found = on_ranks(tmp_path, comm_library, {"layer{rank}": [feeds] * RANKS})["layer{rank}"]
    with torch.no_grad():
        want = layer(x)
    want = (want if isinstance(want, Tensor) else want[0]).numpy()
    for results in found:
        (y,) = results.values()
        np.testing.assert_allclose(y, want, rtol=0, atol=1e-5 * np.abs(want).max())
    np.testing.assert_array_equal(*(next(iter(r.values())) for r in found))
