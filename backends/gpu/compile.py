"""Compiles Triton sources to device code, in worker processes, without a GPU."""

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self, TypeAlias

from tcc.backends.gpu.source import CompiledKernel, KernelSource
from tcc.backends.idle_pool import RESTING
from tcc.backends.workers import WorkerFailedError, WorkerPool, write_error_file
from tcc.budgets import BUDGETS, Budgets
from tcc.errors import ToolError
from tcc.target import GpuProfile
from tcc.temporary import temporary_folder

_WORKER = "tcc.backends.gpu.worker"


# A request to a worker: (source, GPU, True if only assembly is needed).
Request: TypeAlias = tuple[KernelSource, GpuProfile, bool]


def check_triton() -> None:
    """Raises ToolError if Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise ToolError("code for GPUs needs Triton", hint="pip install 'tcc[gpu]'")


class Compilers:
    """Up to `jobs` processes that compile kernels, and the kernels that they have compiled.

    The processes start with the first request. When the context ends, they stay alive for a few
    seconds, so that another compile can use them.
    """

    def __init__(self, jobs: int, budgets: Budgets = BUDGETS) -> None:
        self.jobs = max(jobs, 1)
        self._budgets = budgets
        self._numbers: dict[Request, int] = {}
        self._pool: WorkerPool | None = None
        self._folder = ""
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()
        self._pool = None
        self._numbers.clear()

    def start(self) -> None:
        """Starts the processes, which takes about 1 s; raises ToolError if Triton is not
        installed."""
        if self._pool is not None:
            return
        check_triton()
        self._folder = str(self._ending.enter_context(temporary_folder("tcc-triton-")))
        key = _WORKER, self.jobs, self._budgets, sys.executable, *sys.path
        self._pool = RESTING.take(key)
        if self._pool is None:
            self._pool = WorkerPool(_WORKER, self.jobs, self._budgets)
        self._ending.callback(RESTING.leave, key, self._pool)

    def begin(self, requests: Sequence[Request]) -> None:
        """Starts compiling the requests in the background."""
        self.start()
        assert self._pool is not None
        for request in requests:
            if request not in self._numbers:
                self._numbers[request] = self._pool.submit((request, self._folder))

    def count(self) -> tuple[int, int]:
        """Returns (compiled kernels, all kernels so far), each for every architecture."""
        pool, numbers = self._pool, [*self._numbers.values()]
        return sum(map(pool.has_answer, numbers)) if pool else 0, len(numbers)

    def compiled(self, requests: Sequence[Request]) -> list[CompiledKernel]:
        """Returns the kernels of the requests, in order.

        Raises ToolError for the first request that failed. The error names the kernel and a file
        with its text.
        """
        self.begin(requests)
        assert self._pool is not None
        try:
            kernels: list[CompiledKernel] = self._pool.answers([self._numbers[r] for r in requests])
        except WorkerFailedError as error:
            source, profile, _ = list(self._numbers)[error.number]
            raise error.over or _failure(source, profile, error.why) from None
        return kernels


def requests_for(
    sources: Sequence[KernelSource],
    profiles: Sequence[GpuProfile],
    assembled: Sequence[GpuProfile] = (),
) -> list[Request]:
    """Returns the requests of all sources, source by source.

    Each source has a request per profile, and then a request for assembly alone per profile in
    `assembled`.
    """
    goals = [(p, False) for p in profiles] + [(p, True) for p in assembled]
    return [(source, *goal) for source in sources for goal in goals]


def compile_kernels(
    sources: Sequence[KernelSource],
    profiles: Sequence[GpuProfile],
    compilers: Compilers,
    assembled: Sequence[GpuProfile] = (),
) -> tuple[tuple[CompiledKernel, ...], ...]:
    """Returns for each source its code for each profile, in order.

    The assembly for each CUDA profile in `assembled` follows. Equal sources are compiled once. The
    bytes depend on sources and profiles only.

    Raises ToolError if Triton is not installed. Raises ToolError, naming the kernel and a file with
    its text, if Triton fails, kills its process, or needs more shared memory than there is.
    """
    compiled = compilers.compiled(requests_for(sources, profiles, assembled))
    goals = len(profiles) + len(assembled)
    return tuple(tuple(compiled[n * goals : (n + 1) * goals]) for n in range(len(sources)))


def _failure(source: KernelSource, profile: GpuProfile, why: str) -> ToolError:
    return ToolError(
        f"Triton cannot compile the kernel {source.name} for {profile.text}",
        where=write_error_file(source.text, f"{source.name}.py"),
        why=why,
    )
