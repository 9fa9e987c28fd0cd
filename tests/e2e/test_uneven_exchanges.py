"""Ranks exchange blocks of different sizes, which torch's model has as lists or computes in a run.

The tests compare the received rows, and the messages if ranks disagree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.driver import compile_model
from tcc.options import read_options

from tests.ranks import on_ranks, run_ranks

torch = pytest.importorskip("torch")

# Imports of optional packages come after the check that the packages are installed.
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

# One worker loads the modules that export models.
pytestmark = pytest.mark.xdist_group("torch")

Array = np.ndarray[Any, np.dtype[Any]]


@contextmanager
def ranks(size: int, rank: int) -> Iterator[None]:
    """Starts a process group that computes nothing: an export only records its collectives."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Exchange(nn.Module):
    """Kernels before and after an exchange, and an independent sum over ranks."""

    def __init__(self, splits: Callable[..., Sequence[Any]]) -> None:
        super().__init__()
        self.splits = splits

    def forward(self, x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        sent, received = self.splits(*given)
        result = functional.all_to_all_single(x * 2, received, sent, dist.group.WORLD)
        return result + 1, functional.all_reduce(torch.relu(x[:1]), "sum", dist.group.WORLD)


def exchanged(xs: Sequence[Array], counts: Array) -> list[Array]:
    """Returns the rows that each rank receives if `counts[a, b]` rows go from a to b."""
    parts = [np.split(2 * x, np.cumsum(row)[:-1]) for x, row in zip(xs, counts, strict=True)]
    return [np.concatenate([pieces[rank] for pieces in parts]) + 1 for rank in range(len(xs))]


def rows(counts: Array, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 3)).astype(np.float32) for n in counts.sum(1)]


def check(found: Sequence[Any], xs: Sequence[Array], counts: Array) -> None:
    total = sum(np.maximum(x[:1], 0) for x in xs)  # its terms are not negative
    for results, reference in zip(found, exchanged(xs, counts), strict=True):
        exchanged_rows, sum_ = results.values()
        np.testing.assert_array_equal(exchanged_rows, reference)
        np.testing.assert_allclose(sum_, total, rtol=1e-6, atol=1e-6 * np.max(total))


@pytest.mark.parametrize(
    "counts",
    [[[1, 2], [0, 3]], [[2, 0, 1], [1, 1, 1], [0, 0, 2]], [[40_000, 30_000], [1, 90_000]]],
    ids=["two", "three", "slices"],
)
def test_lists_of_sizes(counts: Any, comm_library: Path, tmp_path: Path) -> None:
    """Each rank has an artifact with its own lists."""
    counts = np.array(counts)
    xs = rows(counts, 3)
    for rank, x in enumerate(xs):
        lists = counts[rank].tolist(), counts[:, rank].tolist()
        with ranks(len(xs), rank):
            program = torch.export.export(Exchange(lambda lists=lists: lists), (torch.tensor(x),))
            compile_model(program, read_options({"jobs": 1}), tmp_path / f"own{rank}.so")
    outputs = on_ranks(tmp_path, comm_library, {"own{rank}": [{"x": x} for x in xs]})
    check(outputs["own{rank}"], xs, counts)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles one artifact for two ranks, which takes the counts as inputs."""
    path = tmp_path_factory.mktemp("learned") / "learned.so"
    with ranks(2, 0):
        model = Exchange(lambda sent, received: (sent.tolist(), received.tolist()))
        example = (torch.zeros(6, 3), torch.tensor([4, 2]), torch.tensor([4, 2]))
        open_rows = {0: torch.export.Dim("n", min=1)}
        shapes = {"x": open_rows, "given": (None, None)}
        program = torch.export.export(model, example, dynamic_shapes=shapes)
        compile_model(program, read_options({"jobs": 1}), path)
    return path


def feeds(counts: Array, xs: Sequence[Array]) -> list[dict[str, Array]]:
    return [
        {"x": x, "given_0": counts[rank], "given_1": counts[:, rank].copy()}
        for rank, x in enumerate(xs)
    ]


def test_sizes_that_a_run_learns(learned: Path, comm_library: Path) -> None:
    names = ("some", "none", "much")
    count_lists = ([[1, 2], [4, 3]], [[0, 1], [2, 0]], [[0, 80_000], [60_000, 7]])
    counts = {name: np.array(n) for name, n in zip(names, count_lists, strict=True)}
    xs = {name: rows(n, 4) for name, n in counts.items()}
    for name in names:
        (learned.parent / f"{name}.so").hardlink_to(learned)
    models = {name: feeds(counts[name], xs[name]) for name in names}
    outputs = on_ranks(learned.parent, comm_library, models)
    for name in names:
        check(outputs[name], xs[name], counts[name])


WRONG = """
import json, sys
import numpy as np
from tcc.runtime import comm as comms, load

_, path, *cases = sys.argv
for case in cases:
    with comms.open(operation_seconds=20) as comm:
        sent, received = json.loads(case)[comm.rank]
        try:
            load(path, comm=comm)(np.zeros((6, 3), np.float32), np.array(sent), np.array(received))
        except Exception as error:
            print(str(error).replace(chr(10), " "))
        else:
            print("done")
"""
CASES = {
    # the counts that rank 0 and rank 1 send and receive, and the messages of both
    "[[[4, 2], [4, 1]], [[2, 4], [2, 4]]]": (
        r"rank 1 \(pid \d+\) sends 6 elements to rank 0 \(pid \d+\), which expects 3",
    ) * 2,
    "[[[4, 3], [4, 1]], [[1, 5], [3, 5]]]": (
        r"the blocks for 2 ranks must be all rows of \S+ \(7, 6\)",
        r"a run of rank 0 failed: .* all rows of \S+ \(7, 6\)",
    ),
    "[[[4, 2], [4, 1]], [[7, -1], [2, 4]]]": (
        r"a run of rank 1 failed: .*a block has less than no rows \(0, -1\)",
        r"a block has less than no rows \(0, -1\)",
    ),
    "[[[4, 2], [4, -1]], [[1, 5], [2, 5]]]": (
        r"-1",
        r"a run of rank 0 failed: .*-1",
    ),
}  # fmt: skip


def test_counts_that_cannot_be(learned: Path, comm_library: Path) -> None:
    """Every rank raises an error that names the fault."""
    texts = run_ranks(2, WRONG, comm_library, learned, *CASES)
    for rank, text in enumerate(texts):
        lines = text.splitlines()
        assert len(lines) == len(CASES)
        for line, said in zip(lines, CASES.values(), strict=True):
            assert re.search(said[rank], line), (rank, line)
