"""Tests of models with collectives, and of plans, on two ranks with a GPU each.

Each rank is a process. An emulator executes the machine code of its kernels, and a fake NCCL or
RCCL moves the data.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
from tcc.artifact import read_manifest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import RankRates, one_host
from tcc.distributed.planner import PlanStep
from tcc.passes.pipeline import Sharder
from tcc.runtime import comm as comms

from tests.e2e.test_collectives import every_kind
from tests.lib.agreement import assert_agree, expected, session
from tests.lib.emulator.amd.decode import FORMATS, formats
from tests.lib.emulator.amd.engine import AmdEngine
from tests.lib.emulator.artifacts import Made, compiled
from tests.lib.emulator.device import Device, Engine
from tests.lib.emulator.models import Array, Small, normal
from tests.lib.emulator.ptx.engine import PtxEngine
from tests.lib.fake_gpu.fakes import in_children
from tests.lib.interpreter.running import NEEDS_TRITON
from tests.runtime.comm.library import build_nccl

pytestmark = NEEDS_TRITON
RANKS, RUNS = 2, 3  # The second run is recorded, the third replayed.


@dataclass(frozen=True)
class Kind:
    """GPUs of a vendor, and the communication library between them."""

    platform: Platform
    library: str
    target: str
    arch: str
    engine: Callable[[Made], Engine]


KINDS = (
    Kind(Platform.CUDA, "nccl", "cuda:sm_90", "sm_90", lambda made: PtxEngine(made.kernels)),
    Kind(Platform.HIP, "rccl", "rocm:gfx942", "gfx942:sramecc+:xnack-", lambda _: AmdEngine()),
)


@dataclass(frozen=True)
class Ranks:
    """A runner of artifacts, one per rank."""

    kind: Kind
    variables: Mapping[str, str]

    def run(
        self, made: Sequence[Made], feeds: Sequence[Mapping[str, Array]], folder: Path
    ) -> list[Mapping[str, Array]]:
        """Returns the results of each rank; fails unless all its runs give equal results."""
        job = {"TCC_SIZE": str(len(made)), "TCC_RENDEZVOUS": f"test-{uuid.uuid4()}"}

        def rank(number: int) -> None:
            os.environ.update({**self.variables, **job, "TCC_RANK": str(number)})
            kind = self.kind
            device = Device(
                Path(self.variables["FAKE_DRIVER"]), kind.platform, kind.engine(made[number])
            )
            device.configure(kind.arch, shared=65536 if kind.platform is Platform.HIP else 232448)
            with device.blamed(), comms.open(operation_seconds=100) as comm:
                module = tcc.load(made[number].path, comm=comm)
                found = [module.run(dict(feeds[number])) for _ in range(RUNS)]
            assert device.launches
            for other in found[1:]:
                for name, value in found[0].items():
                    np.testing.assert_array_equal(other[name], value)
            np.savez(folder / f"found{number}.npz", **found[0])

        in_children([lambda number=number: rank(number) for number in range(len(made))])
        return [dict(np.load(folder / f"found{number}.npz")) for number in range(len(made))]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.library)
def ranks(
    request: pytest.FixtureRequest, comm_library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Ranks:
    for arch in FORMATS.values():
        formats(arch)  # Loading the formats here spares every child the work.
    kind: Kind = request.param
    variables = build_nccl(tmp_path_factory.mktemp(kind.library), kind.library)
    return Ranks(kind, variables | {"TCC_COMM_LIBRARY": str(comm_library)})


def part(first: Array, second: Array, bias: Array, x: Array) -> Small:
    """Returns a rank's part of a perceptron: columns of one matrix, rows of the next, an
    AllReduce."""
    return Small(
        """(float[5,24] x) => (float[5,20] y, float[5,20] z) {
        p = MatMul(x, a) h = Relu(p) q = MatMul(h, b) s = com.microsoft.AllReduce(q)
        y = Add(s, c) e = Exp(x) z = MatMul(e, d) }""",
        {"x": x},
        {"a": first, "b": second, "c": bias, "d": normal(5, 24, 20, scale=0.1)},
    )


def test_a_perceptron_divided_between_two_ranks(ranks: Ranks, tmp_path: Path) -> None:
    """A perceptron divided between two ranks gives the whole result, beside work that needs no
    sum."""
    x, bias = normal(1, 5, 24), normal(2, 20)
    first, second = normal(3, 24, 32, scale=0.2), normal(4, 32, 20, scale=0.2)
    halves = zip(np.split(first, RANKS, 1), np.split(second, RANKS), strict=True)
    made = [
        compiled(part(a, b, bias, x), ranks.kind.target, tmp_path / f"m{rank}.so")
        for rank, (a, b) in enumerate(halves)
    ]
    found = ranks.run(made, [{"x": x}] * RANKS, tmp_path)
    wide = [array.astype(np.float64) for array in (x, first, second, bias)]
    want = np.maximum(wide[0] @ wide[1], 0) @ wide[2] + wide[3]
    beside = np.exp(wide[0]) @ normal(5, 24, 20, scale=0.1).astype(np.float64)
    for results in found:
        np.testing.assert_allclose(results["y"], want, rtol=0, atol=1e-5 * np.abs(want).max())
        np.testing.assert_allclose(results["z"], beside, rtol=0, atol=1e-5 * np.abs(beside).max())


class EveryKind(Small):
    """The model of all collective kinds in tests/e2e."""

    def model(self) -> Any:
        return every_kind()


def test_all_kinds_over_a_symbolic_number_of_rows(ranks: Ranks, tmp_path: Path) -> None:
    made = [compiled(EveryKind("", {}), ranks.kind.target, tmp_path / "kinds.so")] * RANKS
    xs = [normal(rank, 4, 3) for rank in range(RANKS)]
    a, b = (np.maximum(x, 0) for x in xs)
    found = ranks.run(made, [{"x": x} for x in xs], tmp_path)
    for rank, (x, results) in enumerate(zip(xs, found, strict=True)):
        half = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(results["total"], a + b + np.maximum(x, 0))
        np.testing.assert_array_equal(results["rows"], -np.concatenate([a, b]))
        np.testing.assert_array_equal(results["columns"], np.concatenate([a, b], 1))
        want = np.concatenate([xs[0][half], xs[1][half]])
        np.testing.assert_array_equal(results["exchanged"], want)


# ---- plans ---------------------------------------------------------------------------------------

# Free links make the planner divide small models.
FREE_LINKS = RankRates(link_bytes=1e15, latency=0)


def planned(ranks: int) -> list[Sharder]:
    return [PlanStep(one_host(ranks, FREE_LINKS), partition_solver())]


def perceptron() -> Small:
    return Small(
        """(float[5,24] x) => (float[5,20] y) {
        p = MatMul(x, a) s = Add(p, b) h = Relu(s) q = MatMul(h, c) y = Add(q, d) }""",
        {"x": normal(31, 5, 24)},
        {"a": normal(32, 24, 32, scale=0.2), "b": normal(33, 32),
         "c": normal(34, 32, 20, scale=0.2), "d": normal(35, 20)},
    )  # fmt: skip


def attention_block() -> Small:
    """Returns attention with four heads of width 8, plus its input."""
    return Small(
        """(float[6,32] x) => (float[6,32] y) {
        q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv)
        qh = Reshape(q, heads) kh = Reshape(k, heads) vh = Reshape(v, heads)
        qt = Transpose<perm = [1,0,2]>(qh) kt = Transpose<perm = [1,2,0]>(kh)
        vt = Transpose<perm = [1,0,2]>(vh) s = MatMul(qt, kt) p = Softmax<axis = -1>(s)
        o = MatMul(p, vt) ot = Transpose<perm = [1,0,2]>(o) f = Reshape(ot, flat)
        z = MatMul(f, wo) y = Add(z, x) }""",
        {"x": normal(41, 6, 32)},
        {**{f"w{n}": normal(42 + i, 32, 32, scale=0.2) for i, n in enumerate("qkvo")},
         "heads": np.array([6, 4, 8]), "flat": np.array([6, 32])},
    )  # fmt: skip


@pytest.mark.parametrize("model", [perceptron, attention_block])
def test_a_plan_gives_the_results_of_onnx_runtime(
    ranks: Ranks, model: Callable[[], Small], tmp_path: Path
) -> None:
    small = model()
    made = compiled(small, ranks.kind.target, tmp_path / "m.so", sharders=planned, ranks=RANKS)
    (entry,) = read_manifest(made.path)["variants"]
    matrices = sum(array.nbytes for array in small.weights.values() if array.ndim == 2)
    assert len(set(entry["weights"]["offsets"])) == RANKS
    assert entry["weights"]["bytes"] < 0.9 * matrices
    found = ranks.run([made] * RANKS, [small.inputs] * RANKS, tmp_path)
    want = expected(session(small.model()), small.inputs)
    for results in found:
        assert_agree(results, want, small.tolerance)
        np.testing.assert_array_equal(results["y"], found[0]["y"], strict=True)
