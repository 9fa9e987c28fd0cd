"""Compiles tile kernels to object files, in worker processes."""

import sys
from collections.abc import Sequence
from typing import TypeAlias

from tcc.backends.cpu.llvm.emit import KernelText, emit_kernel
from tcc.backends.idle_pool import RESTING
from tcc.backends.workers import WorkerFailedError, WorkerPool, write_error_file
from tcc.budgets import BUDGETS, Budgets
from tcc.debug import Trace
from tcc.errors import InternalError, UserError
from tcc.frozen import frozen
from tcc.ir.tile import TileKernel
from tcc.schedule.alternatives import digest_of
from tcc.target import Target
from tcc.zipped import zip_equal

_WORKER = "tcc.backends.cpu.worker"
# Object files by the digest of the LLVM text from which they were compiled.
CodeCache: TypeAlias = dict[str, bytes]


@frozen
class CompiledKernels:
    """The object file and the LLVM listing of each kernel, in order.

    `scratch` is the number of bytes of private memory (64-byte aligned) that a thread needs to run
    any of them.
    """

    objects: tuple[bytes, ...]
    scratch: int
    listings: tuple[str, ...]


def compile_kernels(
    kernels: Sequence[TileKernel],
    names: Sequence[str],
    target: Target,
    jobs: int,
    budgets: Budgets = BUDGETS,
    seconds: Sequence[float] = (),
    cache: CodeCache | None = None,
    trace: Trace | None = None,
) -> CompiledKernels:
    """Compiles each kernel under its name, in up to `jobs` processes.

    `seconds` has for each kernel the time of one tile if it is long, else 0; empty means 0 for all.
    The result depends on kernels, names, target and `seconds` only. Kernels whose text `cache` has
    are not compiled again; the others are added to it. A cache is for one target. `trace` gets the
    number of kernels that are compiled.

    Raises InternalError if code generation fails or kills its process; the error names the kernel
    and a file with its LLVM text. Raises the error of the budget if the process exceeds its memory
    or time.
    """
    key, pool = _awake_pool(len(kernels), jobs, budgets)
    texts: list[KernelText] = []
    submitted: list[KernelText] = []
    numbers: dict[str, int] = {}
    digests: list[str] = []
    cache = {} if cache is None else cache

    def count() -> tuple[int, int]:
        done = (d in cache or pool.has_answer(numbers.get(d, -1)) for d in [*digests])
        return sum(done), len(kernels)

    if trace is not None:
        trace.counting(count)
    try:
        rows = zip_equal(kernels, names, seconds or [0.0] * len(kernels))
        for kernel, name, tile_seconds in rows:
            texts.append(emit_kernel(kernel, name, target, tile_seconds))
            digests.append(digest := digest_of(texts[-1].llvm))
            if digest not in cache and digest not in numbers:
                numbers[digest] = pool.submit((texts[-1].llvm, target, False))
                submitted.append(texts[-1])
        answers = pool.answers([*numbers.values()])
        cache.update(zip_equal(numbers, answers))
    except WorkerFailedError as error:
        raise error.over or _failure(submitted[error.number], error.why) from None
    finally:
        RESTING.leave(key, pool)
    scratch = max((t.scratch for t in texts), default=0)
    return CompiledKernels(tuple(cache[d] for d in digests), scratch, tuple(t.llvm for t in texts))


def start_processes(kernels: int, jobs: int, budgets: Budgets) -> None:
    """Starts processes for about `kernels` kernels, which `compile_kernels` will compile soon."""
    RESTING.leave(*_awake_pool(kernels, jobs, budgets))


def _awake_pool(kernels: int, jobs: int, budgets: Budgets) -> tuple[tuple[object, ...], WorkerPool]:
    jobs = max(jobs, 1)
    key = _WORKER, jobs, budgets, sys.executable, *sys.path
    pool = RESTING.take(key) or WorkerPool(_WORKER, 0, budgets=budgets)
    pool.wake(min(jobs, kernels))
    return key, pool


def kernel_assembly(llvm: str, target: Target) -> str:
    """Returns the assembly of a kernel's LLVM IR, as `compile_kernels` would encode it.

    Raises UserError if LLVM rejects the text.
    """
    key, pool = _awake_pool(1, 1, BUDGETS)
    try:
        (listing,) = pool.answers([pool.submit((llvm, target, True))])
    except WorkerFailedError as error:
        raise UserError("the kernel's LLVM IR cannot be compiled", why=error.why) from None
    finally:
        RESTING.leave(key, pool)
    text: str = listing.decode()
    return text


def _failure(text: KernelText, why: str) -> InternalError:
    path = write_error_file(text.llvm, f"{text.name}.ll")
    return InternalError(f"LLVM cannot compile the kernel {text.name}", where=path, why=why)
