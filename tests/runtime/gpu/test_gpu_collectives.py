"""Collectives of hand-written programs between stand-in GPUs: the order of calls, recorded runs,
and runs in which a rank fails."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.gpu_binaries import Platform
from tcc.ir.program import (
    Allocate,
    Arena,
    Collective,
    CollectiveKind,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Program,
    RankGroup,
    ReadInt,
    Reduction,
    Wait,
)
from tcc.ir.types import DTYPES
from tcc.runtime import comm as comms
from tcc.runtime import load

from tests.lib.fake_gpu.fakes import ARCHS, Artifact, Driver, Fakes, in_children, on_device, on_host
from tests.lib.fake_gpu.gpu_programs import GpuBuilder, images, link
from tests.runtime.comm.library import build_nccl

N = 20
ALL_REDUCE = "ncclAllReduce count=20 type=7 op=0 peer=0 stream="


def summing(*, apart: bool) -> Program:
    """Returns y = relu(x) + the sum of all ranks' x, for x: f32[20]; with `apart`, relu runs
    between start and wait."""
    b = GpuBuilder()
    n, size, zero = b.const(N), b.const(4 * N), b.const(0)
    b.arena = b.let(IntOp.ADD, b.const(512), size)
    b.input("x", "f32", [n], "[20]")
    x, relu_result = b.buffer(Input(0)), b.buffer(Arena(zero, size))
    total = b.buffer(Arena(b.const(512), size))
    y = b.output("y", "f32", [n], "[20]")
    b.allocate(y, size)
    kind, dtype = CollectiveKind.ALL_REDUCE, DTYPES["f32"]
    start, wait = Collective(kind, Reduction.SUM, x, total, (n,), dtype, 0), Wait(0, x, total)
    b.body.append(start)
    if not apart:
        b.body.append(wait)
    b.launch("relu", b.blocks(n), [x, relu_result], [n])
    if apart:
        b.body.append(wait)
    b.launch("add", b.blocks(n), [relu_result, total, y], [n])
    return b.program()


def among(lists: tuple[tuple[int, ...], ...]) -> Program:
    """Returns `summing` among the ranks of each list."""
    program = summing(apart=True)
    body = [
        replace(i, group=0, ranks=len(lists[0])) if isinstance(i, Collective) else i
        for i in program.body
    ]
    return _with_body(replace(program, groups=(RankGroup("some", lists),)), body)


def exchanging(*, learned: bool) -> Program:
    """Returns a program that exchanges blocks of x between two ranks, and then gathers them.

    Rank a sends 3 + a + 2 * b elements to rank b. Then all ranks get as many elements of each rank
    as it sent to both. With `learned`, a run reads the 3 from k: i64 on the device.
    """
    b = GpuBuilder()
    rank, one, two = b.let(IntOp.RANK), b.const(1), b.const(2)
    four, eight, most = b.const(4), b.const(8), b.const(N)
    b.input("x", "f32", [most], "[20]")
    b.input("k", "i64", [one], "[1]")
    x, k, host = b.buffer(Input(0)), b.buffer(Input(1)), b.buffer(Dynamic())
    least = b.register() if learned else b.const(3)
    if learned:
        b.allocate(host, eight)
        b.body += [Copy(host, k, eight), ReadInt(least, host, DTYPES["i64"], 0)]
    zero = b.const(0)
    double = b.let(IntOp.MUL, rank, two)
    sent = [b.let(IntOp.ADD, b.let(IntOp.ADD, least, rank), n) for n in (zero, two)]
    received = [b.let(IntOp.ADD, b.let(IntOp.ADD, least, double), n) for n in (zero, one)]
    whole = b.let(IntOp.ADD, *sent)
    # rank r has 2 * least + 2 * r + 2 elements
    each = [b.let(IntOp.ADD, b.let(IntOp.ADD, least, least), n) for n in (two, four)]
    operation, dtype = Reduction.SUM, DTYPES["f32"]
    for name, kind, counts in (
        ("own", CollectiveKind.ALL_TO_ALL, (*sent, *received)),
        ("all", CollectiveKind.ALL_GATHER, (whole, *each)),
    ):
        total = b.let(IntOp.ADD, *counts[-2:])
        size = b.let(IntOp.MUL, total, four)
        gathered, y = b.buffer(Dynamic()), b.output(name, "f32", [total], "[n]")
        b.allocate(gathered, size)
        b.body += [Collective(kind, operation, x, gathered, counts, dtype, 2), Wait(0, x, gathered)]
        b.allocate(y, size)
        b.launch("relu", b.blocks(total), [gathered, y], [total])
    return b.program()


def without_wait() -> Program:
    program = summing(apart=False)
    return _with_body(program, [i for i in program.body if not isinstance(i, Wait)])


def waiting_twice() -> Program:
    program = summing(apart=False)
    return _with_body(program, [*program.body, *(i for i in program.body if isinstance(i, Wait))])


def freeing() -> Program:
    """Returns a program that reallocates the buffer into which a collective writes."""
    program = summing(apart=True)
    (start,) = (i for i in program.body if isinstance(i, Collective))
    (size,) = (i.size for i in program.body if isinstance(i, Allocate))
    buffers = list(program.buffers)
    buffers[start.receive] = replace(buffers[start.receive], place=Dynamic())
    anew = Allocate(start.receive, size)
    body = [j for i in program.body for j in ([anew, i, anew] if i is start else [i])]
    return _with_body(replace(program, buffers=tuple(buffers)), body)


def _with_body(program: Program, body: Sequence[Instr]) -> Program:
    return replace(program, body=tuple(body))


@dataclass(frozen=True)
class Job:
    """Processes with a stand-in GPU each, on one comm."""

    platform: Platform
    variables: dict[str, str]
    folder: Path
    kernels: Path

    def artifact(self, name: str, program: Program) -> Path:
        out = self.folder / f"{name}.so"
        if not out.exists():
            link(program, images(self.kernels, self.platform), out)
        return out

    def run(
        self, size: int, test: Callable[[comms.Comm, Driver], None], *, dies: bool = False,
        **variables: str,
    ) -> None:  # fmt: skip
        """Runs `test` on every rank, and checks that all objects are freed at its end. With `dies`,
        rank 1 ends by itself."""
        job = {"TCC_SIZE": str(size), "TCC_RENDEZVOUS": f"test-{uuid.uuid4()}"}

        def rank(number: int) -> None:
            os.environ.update({**self.variables, **job, **variables, "TCC_RANK": str(number)})
            driver = Driver(Path(self.variables["FAKE_DRIVER"]), self.platform)
            driver.configure(ARCHS[self.platform])
            with comms.open(operation_seconds=20) as comm:
                test(comm, driver)
            gc.collect()
            assert not any(driver.live().values()), driver.live()
            assert library(self.variables).fake_nccl_live() == 0

        ranks: list[Callable[[], None]] = [partial(rank, number) for number in range(size)]
        if not dies:
            in_children(ranks, 60)
            return
        with pytest.raises(AssertionError, match=r"\Athe child ended with status 9\n?\Z"):
            in_children(ranks, 60)


def library(variables: dict[str, str]) -> ctypes.CDLL:
    """Returns the stand-in for NCCL or RCCL."""
    return ctypes.CDLL(next(path for name, path in variables.items() if "CCL_LIB" in name))


def operations(variables: dict[str, str]) -> list[str]:
    """Returns the calls of the library since the last call of this function."""
    text = ctypes.create_string_buffer(1 << 16)
    library(variables).fake_nccl_log(text, ctypes.c_size_t(1 << 16))
    return text.value.decode().splitlines()


@pytest.fixture(scope="module", params=Platform, ids=lambda platform: platform.name)
def job(
    request: pytest.FixtureRequest, fakes: Fakes, comm_library: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Job:  # fmt: skip
    platform: Platform = request.param
    folder = tmp_path_factory.mktemp("collectives")
    variables = build_nccl(folder, "nccl" if platform is Platform.CUDA else "rccl")
    return Job(platform, variables | {"TCC_COMM_LIBRARY": str(comm_library)}, folder, fakes.kernels)


def short(lines: list[str]) -> list[str]:
    """Returns the operations on streams: name without prefix, and stream."""
    shortened = []
    for line in lines:
        name, *words = line.removeprefix("cu").removeprefix("hip").split()
        if any(part in name for part in ("Event", "Launch", "Capture")):
            arguments = [word for word in words if word.startswith(("stream=", "of="))]
            name = name.removeprefix("Module").replace("LaunchKernel", "Launch")
            shortened.append(" ".join([name.removesuffix("_v2"), *arguments]))
    return shortened


X = np.linspace(-1, 1, N, dtype=np.float32)


def expected(size: int, rank: int) -> np.ndarray[Any, Any]:
    return np.maximum(X * (rank + 1), 0) + X * (size * (size + 1) // 2)


def test_waits_at_once_need_no_stream_of_their_own(job: Job) -> None:
    path = job.artifact("at_once", summing(apart=False))

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        for streams in ([1], [2], []):  # plain, recorded, replayed
            driver.log()
            np.testing.assert_array_equal(module(X), expected(1, 0))
            assert operations(job.variables) == [f"{ALL_REDUCE}{number}" for number in streams]
            events = [line for line in short(driver.log()) if "Event" in line]
            assert not events
        del module

    job.run(1, test)


def test_kernels_run_beside_a_collective(job: Job) -> None:
    """The side stream begins after earlier work, and the wait is an event; the same holds in a
    graph."""
    path = job.artifact("apart", summing(apart=True))

    def calls(queue: int) -> list[str]:
        return [
            f"EventRecord stream={queue}", f"StreamWaitEvent stream=3 of={queue}",
            "EventRecord stream=3", f"Launch stream={queue}",
            f"StreamWaitEvent stream={queue} of=3", f"Launch stream={queue}",
        ]  # fmt: skip

    recorded = ["StreamBeginCapture stream=2", *calls(2), "StreamEndCapture stream=2"]
    runs = (
        (["3"], calls(1)),
        (["3"], [*recorded, "GraphLaunch stream=1"]),
        ([], ["GraphLaunch stream=1"]),
    )

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        for streams, lines in runs:
            driver.log()
            np.testing.assert_array_equal(module(X), expected(1, 0))
            assert operations(job.variables) == [f"{ALL_REDUCE}{number}" for number in streams]
            assert short(driver.log()) == lines
        del module

    job.run(1, test)


def test_two_ranks_on_streams_of_their_callers(job: Job) -> None:
    """Runs return before they are done; the caller may record them after its ranks have met."""
    path = job.artifact("apart", summing(apart=True))

    def test(comm: comms.Comm, driver: Driver) -> None:
        artifact, stream = Artifact(path, comm=comm.handle), driver.stream()
        x, y = driver.array(X * (comm.rank + 1)), driver.array(X)
        tensors = [on_device(driver, x, [N])], [on_device(driver, y, [N])]
        with (
            driver.recording(stream),
            pytest.raises(RuntimeError, match="have not met on"),
        ):
            artifact.run(*tensors, stream)
        for _ in range(4):
            artifact.run(*tensors, stream)
            driver.settle(stream)
            np.testing.assert_array_equal(driver.read(y, [N]), expected(2, comm.rank))
        with driver.recording(stream) as graph:
            artifact.run(*tensors, stream)
        for _ in range(2):
            driver.replay(graph[0], stream)
            np.testing.assert_array_equal(driver.read(y, [N]), expected(2, comm.rank))
        driver.forget(graph[0])
        comm.barrier()
        artifact.close()
        driver.give(x)
        driver.give(y)

    job.run(2, test)


def test_groups_of_ranks_have_communicators_of_their_own(job: Job) -> None:
    """The same holds for recorded runs, which end if a rank of another group dies."""
    path = job.artifact("among", among(((0, 2), (1, 3))))

    def test(comm: comms.Comm, driver: Driver) -> None:
        module, number, other = load(path, comm=comm), comm.rank + 1, (comm.rank + 2) % 4 + 1
        for _ in range(3):
            expected_output = np.maximum(number * X, 0) + (number + other) * X
            np.testing.assert_array_equal(module(number * X), expected_output)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

        def until_it_fails() -> None:
            while True:
                module(number * X)

        told = r"the process of rank 1 \(pid|in group some: the process of rank 0 \(pid"
        with pytest.raises(RuntimeError, match=told):
            until_it_fails()

    job.run(4, test, dies=True)


@pytest.mark.parametrize("learned", [False, True])
def test_ranks_exchange_blocks_of_any_sizes(learned: bool, job: Job) -> None:
    """The exchange consists of sends and receives of each size; it is recorded and replayed if a
    run learns no sizes."""
    path = job.artifact(f"exchanging{learned}", exchanging(learned=learned))

    def test(comm: comms.Comm, driver: Driver) -> None:
        module, rank = load(path, comm=comm), comm.rank
        xs = [X + 2 + n for n in range(2)]
        for least in (3, 2, 4, 4) if learned else (3, 3, 3):
            counts = [[least + a + 2 * b for b in range(2)] for a in range(2)]
            places = [0, counts[0][0]][rank], [0, counts[1][0]][rank]
            own_blocks = [x[p : p + n[rank]] for x, p, n in zip(xs, places, counts, strict=True)]
            outputs = module(xs[rank], np.array([least]))
            np.testing.assert_array_equal(outputs[0], np.concatenate(own_blocks))
            all_ = [x[: sum(n)] for x, n in zip(xs, counts, strict=True)]
            np.testing.assert_array_equal(outputs[1], np.concatenate(all_))
            lines = [line.split()[:4] for line in operations(job.variables)]
            sends = [(words[1], words[-1]) for words in lines if words and "Send" in words[0]]
            if learned:
                rows_of_rank = sum(counts[rank])
                due = [*counts[rank], rows_of_rank, rows_of_rank]
                assert [int(n.split("=")[1]) for n, _ in sends] == due
        del module

    job.run(2, test)


def test_ranks_that_learn_other_counts_are_told(job: Job) -> None:
    """The error comes before the library waits for elements that never come."""
    path = job.artifact("exchangingTrue", exchanging(learned=True))

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        told = r"rank \d sends 5 elements to rank \d, which expects [46]"
        with pytest.raises(RuntimeError, match=told):
            module(X, np.array([3 + comm.rank]))
        del module

    job.run(2, test)


def test_a_comm_may_be_closed_before_its_models(job: Job) -> None:
    """A recorded run holds the library's communicator until its instance ends or has another
    recording."""
    path = job.artifact("apart", summing(apart=True))
    modules: list[Any] = []

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        modules.append(module)
        for _ in range(3):
            module(X)
        comm.close()
        assert library(job.variables).fake_nccl_live() == 1
        with pytest.raises(comms.CommError):
            comm.barrier()
        modules.clear()
        del module
        gc.collect()

    job.run(1, test)


def test_the_processs_comm_may_change_between_runs(job: Job) -> None:
    path = job.artifact("apart", summing(apart=True))

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path)
        for turn in range(2):
            with comms.open(rendezvous=f"{os.environ['TCC_RENDEZVOUS']}-{turn}") as other:
                other.share()
                for _ in range(3):
                    np.testing.assert_array_equal(module(X), expected(1, 0))
            assert library(job.variables).fake_nccl_live() == 1  # the module's communicator
        del module

    job.run(1, test)


def test_a_rank_that_dies_ends_the_runs_of_others(job: Job) -> None:
    path = job.artifact("apart", summing(apart=True))

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        for _ in range(3):
            module(X)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"the process of rank 1 \(pid"):
                module(X)
        assert driver.live()["executables"] == 0  # the library waits for graphs
        del module

    job.run(2, test, dies=True)


def test_a_run_that_fails_ends_the_runs_of_other_ranks(job: Job) -> None:
    path = job.artifact("apart", summing(apart=True))
    call = "cuEventRecord" if job.platform is Platform.CUDA else "hipEventRecord"

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        module(X)
        with pytest.raises(RuntimeError, match="x"):
            module(X[1:])  # refused arrays leave the comm unchanged
        module(X)
        comm.barrier()
        if comm.rank == 1:
            del module
            module = load(path, comm=comm)  # its run is not recorded yet
            driver.fail(call, 1, 700)
            with pytest.raises(RuntimeError, match="a collective cannot be put behind kernels"):
                module(X)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a run of rank 1 failed: a collective cannot"):
                module(X)
        del module

    job.run(2, test)


def test_a_library_that_is_missing_is_named(job: Job) -> None:
    path = job.artifact("apart", summing(apart=True))
    name = "TCC_NCCL_LIBRARY" if job.platform is Platform.CUDA else "TCC_RCCL_LIBRARY"

    def test(comm: comms.Comm, driver: Driver) -> None:
        module = load(path, comm=comm)
        with pytest.raises(RuntimeError, match=f"rank 0: rank 0: {name}: /no/lib.so: cannot open"):
            module(X)
        comm.barrier()  # no operation has begun
        del module

    job.run(1, test, **{name: "/no/lib.so"})


@pytest.mark.parametrize("call", ["EventRecord", "StreamWaitEvent", "StreamEndCapture",
                                  "StreamSynchronize", "GraphInstantiateWithFlags"])  # fmt: skip
def test_calls_of_the_driver_that_fail(job: Job, call: str) -> None:
    """Each call fails at its first use, in the first run or in the recorded run."""
    path = job.artifact("apart", summing(apart=True))
    prefix = "cu" if job.platform is Platform.CUDA else "hip"

    def test(comm: comms.Comm, driver: Driver) -> None:
        for runs in (0, 1):
            with comms.open(rendezvous=f"{os.environ['TCC_RENDEZVOUS']}-{runs}") as job_comm:
                module = load(path, comm=job_comm)
                for _ in range(runs):
                    module(X)
                if runs == 0 and call not in ("EventRecord", "StreamWaitEvent"):
                    module(X)
                driver.fail(prefix + call, 1, 901)
                with pytest.raises(RuntimeError, match=r"error 901, ERROR_FAKE"):
                    module(X)
                with pytest.raises(RuntimeError, match="a run of rank 0 failed"):
                    module(X)
                del module

    job.run(1, test)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (without_wait, "ends while a collective is under way"),
        (waiting_twice, "waits for a collective that it did not start"),
        (freeing, "frees memory that a collective uses"),
    ],
)
def test_wrong_tickets_are_stopped(job: Job, make: Callable[[], Program], said: str) -> None:
    path = job.artifact(make.__name__, make())

    def test(comm: comms.Comm, driver: Driver) -> None:
        artifact, y = Artifact(path, comm=comm.handle), np.empty(N, np.float32)
        with pytest.raises(RuntimeError, match=said):
            artifact.run([on_host(X)], [on_host(y)])
        artifact.close()

    job.run(1, test)
