"""Builds the workers for tests: a stress program, natively and for aarch64, and the explorer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "runtime"
EXPLORER = HERE.parent / "lib" / "explorer"
WORKERS = ("crew.c", "threads.c", "width.c", "workers.c")
SYSTEM = ("limits.c", "groups.c", "alloc.c", "status.c", "notes.c")
CROSS, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# the scenarios, each with the budget of deviations for which a test has time
SCENARIOS = {
    "pair": 2, "pieces": 2, "growing": 2, "settling": 2, "sleeping": 2, "callers": 2, "giving": 1,
    "taking": 2, "making": 2, "narrowing": 2,
}  # fmt: skip
DELAYS = (f"-I{HERE}", '-DTCC_TRIAL="delays.h"')

# The system functions that the explorer replaces.
_INSTEAD = {
    "pthread_create": "explorer_create",
    "pthread_sigmask": "explorer_sigmask",
    "clock_gettime": "explorer_clock",
    "syscall": "explorer_syscall",
    "posix_memalign": "explorer_memalign",
    "free": "explorer_free",
}
_FLAGS = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class Fault:
    """One change of the workers' sources that makes them wrong."""

    name: str
    file: str
    old: str
    new: str
    scenario: str = "pair"

    def plant(self, folder: Path) -> Path:
        """Returns a copy of the runtime with the fault."""
        copy = folder / "runtime"
        shutil.copytree(RUNTIME, copy)
        path = copy / "src" / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, (self.name, text.count(self.old))
        path.write_text(text.replace(self.old, self.new))
        return copy


def _relaxed(name: str, file: str, old: str, scenario: str = "pair") -> Fault:
    """Returns the fault that an atomic access has relaxed order."""
    new = old
    for order in ("memory_order_acquire", "memory_order_release", "memory_order_acq_rel"):
        new = new.replace(order, "memory_order_relaxed")
    assert new != old
    return Fault(name, file, old, new, scenario)


# The fault of version 3: a slot's number of seats changed while the slot still showed the old
# ticket.
_EARLY_SEATS = Fault(
    "seats before the ticket",
    "threads.c",
    "    TCC_BETWEEN();\n    atomic_store_explicit(&slot->kernel",
    "    uint64_t old = atomic_load_explicit(&slot->word, memory_order_relaxed) >> WORD_TICKET;\n"
    "    atomic_store_explicit(\n"
    "        &slot->word, old << WORD_TICKET | previous << WORD_PREVIOUS | seats,\n"
    "        memory_order_relaxed);\n"
    "    TCC_BETWEEN();\n    atomic_store_explicit(&slot->kernel",
    "growing",
)
# A run with one thread launches while workers still run the previous launch.
_UNSETTLED = Fault(
    "alone beside its workers",
    "crew.c",
    "    tcc_crew_settle(crew);\n    if (job->units > 0)",
    "    if (job->units > 0)",
    "narrowing",
)
MISPLACED = (_EARLY_SEATS, _UNSETTLED)
# Each atomic access of the workers with an order, made relaxed.
UNORDERED = (
    _relaxed("publish", "threads.c", "previous << WORD_PREVIOUS | seats,\n"
             "                          memory_order_release"),
    _relaxed("look for a launch", "threads.c", "(last + 1) & 1].word, memory_order_acquire"),
    _relaxed("claim", "threads.c", "memory_order_acq_rel"),
    _relaxed("end of a thief", "threads.c", "CLAIM_THIEF, memory_order_release"),
    _relaxed("wait for thieves", "threads.c",
             "atomic_load_explicit(&seat->claim, memory_order_acquire) & CLAIM_THIEVES"),
    _relaxed("say a range is done", "threads.c", "at->ticket, memory_order_release"),
    _relaxed("see that a range is done", "threads.c", "&seat->done, memory_order_acquire"),
    _relaxed("see that a range is taken over", "threads.c",
             "uint64_t claim = atomic_load_explicit(&seat->claim, memory_order_acquire)"),
    _relaxed("give a team back", "crew.c", "false, memory_order_release", "callers"),
    _relaxed("take a team", "crew.c", "true, memory_order_acquire", "callers"),
    _relaxed("publish a team", "crew.c", "created, memory_order_release", "making"),
    _relaxed("see a team", "crew.c", "(place, memory_order_acquire", "making"),
    _relaxed("hire", "workers.c", "memory_order_release, memory_order_relaxed", "taking"),
    _relaxed("be hired", "workers.c", "load_explicit(post, memory_order_acquire", "taking"),
)  # fmt: skip


def orders() -> int:
    """Returns the number of atomic accesses with an order in the workers' sources."""
    texts = [(RUNTIME / "src" / name).read_text() for name in WORKERS]
    names = ("memory_order_acquire", "memory_order_release", "memory_order_acq_rel")
    return sum(text.count(name) for text in texts for name in names)


def compile_c(compiler: str, flags: Iterable[str], sources: Iterable[Path], out: Path) -> None:
    command = (compiler, "-std=gnu11", *_FLAGS, *flags, *map(str, sources), "-o", str(out))
    subprocess.run(command, check=True)


def includes(runtime: Path) -> tuple[str, ...]:
    return f"-I{runtime / 'include'}", f"-I{runtime / 'src'}"


def build_stress(
    folder: Path, *flags: str, compiler: str = "cc", runtime: Path = RUNTIME, main: str = "stress.c"
) -> Path:
    """Builds the program `main` with the workers of `runtime`."""
    sources = [HERE / main, *(runtime / "src" / name for name in (*WORKERS, *SYSTEM))]
    flags = ("-O1", *flags, *includes(runtime))
    compile_c(compiler, (*flags, "-lpthread"), (*sources, Path("-ldl")), folder / "stress")
    return folder / "stress"


def _common_flags(runtime: Path) -> tuple[str, ...]:
    return ("-g", "-O1", "-Wno-tsan", f"-I{EXPLORER}", *includes(runtime))


def build_explorer_parts(folder: Path) -> list[Path]:
    """Compiles all objects that no fault changes to `folder`: the explorer itself, and the callees
    of the workers."""
    sources = [EXPLORER / name for name in ("memory.c", "search.c", "hooks.c")]
    sources += [RUNTIME / "src" / name for name in SYSTEM]
    for source in sources:
        flags = (*_common_flags(RUNTIME), "-O2", "-c")
        compile_c("cc", flags, [source], folder / f"{source.stem}.o")
    return [folder / f"{source.stem}.o" for source in sources]


def build_explorer(
    folder: Path, runtime: Path = RUNTIME, parts: Sequence[Path] | None = None
) -> Path:
    """Builds the explorer of the workers of `runtime`; explorer.h describes the build.

    `parts` are the objects of `build_explorer_parts`; by default they are compiled to `folder`.
    """
    common = _common_flags(runtime)
    watched = ("-fsanitize=thread", '-DTCC_TRIAL="trial.h"')
    watched += tuple(f"-D{name}={other}" for name, other in _INSTEAD.items())
    tested = [*(runtime / "src" / name for name in WORKERS), EXPLORER / "scenarios.c"]
    for source in tested:
        compile_c("cc", (*common, *watched, "-c"), [source], folder / f"{source.stem}.o")
    objects = [folder / f"{source.stem}.o" for source in tested]
    objects += build_explorer_parts(folder) if parts is None else parts
    compile_c("cc", (*common, "-O2", "-lpthread"), objects, folder / "explore")
    return folder / "explore"


def explore(binary: Path, scenario: str, deviations: int, bits: int = 22) -> tuple[bool, str]:
    """Returns whether all executions hold, and the output: counts, or the steps of a wrong
    execution."""
    command = (str(binary), scenario, str(deviations), str(bits))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), (command, result.returncode, result.stderr)
    return result.returncode == 0, result.stdout


def aarch64_tools() -> str:
    """Returns the name of a missing tool to compile and run for aarch64, or ""."""
    return ", ".join(name for name in (CROSS, QEMU) if shutil.which(name) is None)


def build_for_aarch64(folder: Path) -> Callable[..., Sequence[str]]:
    """Builds the stress program for aarch64; returns a function from arguments to its command."""
    binary = build_stress(folder, "-static", *DELAYS, compiler=CROSS)
    return lambda *arguments: (QEMU, str(binary), *map(str, arguments))
