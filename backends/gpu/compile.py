"""Triton sources to device code, in worker processes, without a GPU."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tcc.backends.gpu.source import CompiledKernel, KernelSource
from tcc.backends.workers import WorkerFailedError, WorkerPool
from tcc.errors import ToolError, UserError
from tcc.target import GpuProfile

_WORKER = "tcc.backends.gpu.worker"


# A source, for which GPU, and whether as assembly alone.
Request: TypeAlias = tuple[KernelSource, GpuProfile, bool]


def compile_kernels(
    sources: Sequence[KernelSource],
    profiles: Sequence[GpuProfile],
    jobs: int,
    assembled: Sequence[GpuProfile] = (),
    known: MutableMapping[Request, CompiledKernel] | None = None,
) -> tuple[tuple[CompiledKernel, ...], ...]:
    """For each source its code for each profile, in order, by up to `jobs` processes; behind these
    its assembly for those of CUDA in `assembled`.

    Equal sources are compiled once; what is `known` is not compiled again, and what is compiled is
    known from then on.  The bytes depend on sources and profiles only.  Raises
    UserError where Triton is not installed and ToolError, naming the kernel and a file with its
    text, where Triton fails, kills its process or needs more shared memory than there is.
    """
    if importlib.util.find_spec("triton") is None:
        raise UserError("code for GPUs needs Triton", hint="install it: pip install 'tcc[gpu]'")
    goals = [(p, False) for p in profiles] + [(p, True) for p in assembled]
    found = {} if known is None else known
    wanted = [(source, *goal) for source in dict.fromkeys(sources) for goal in goals]
    missing = [request for request in wanted if request not in found]
    if missing:
        found.update(zip(missing, _compiled(missing, jobs), strict=True))
    return tuple(tuple(found[source, *goal] for goal in goals) for source in sources)


def _compiled(requests: Sequence[Request], jobs: int) -> list[CompiledKernel]:
    with tempfile.TemporaryDirectory(prefix="tcc-triton-") as folder:
        pool = WorkerPool(_WORKER, min(max(jobs, 1), len(requests)), _environment(folder))
        try:
            for request in requests:
                pool.submit(request)
            kernels: list[CompiledKernel] = pool.results()
        except WorkerFailedError as error:
            source, profile, _ = requests[error.number]
            raise _failure(source, profile, error.why) from None
        finally:
            pool.abandon()
    return kernels


def _environment(folder: str) -> dict[str, str]:
    """This process's environment without what changes Triton's output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "MLIR_", "LLVM_"))}
    own = {"TRITON_CACHE_DIR": f"{folder}/cache", "TRITON_DISABLE_LINE_INFO": "1"}
    return kept | own | {"TMPDIR": folder}


def _failure(source: KernelSource, profile: GpuProfile, why: str) -> ToolError:
    path = Path(tempfile.mkdtemp(prefix="tcc-kernel-")) / f"{source.name}.py"
    path.write_text(source.text)
    return ToolError(
        f"Triton cannot compile the kernel {source.name} for {profile.text}",
        where=str(path),
        why=why,
    )
