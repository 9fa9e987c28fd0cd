"""Limits for objects that outlive their parents, and for threads in one comm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from environment import ROOT
from tcc.backends.artifact.comm_library import FLAGS, build_comm_library
from tcc.backends.artifact.toolchain import find_toolchain

from bars.figures import TESTS, Figure, absent, at_most, output, say, unpack_runtime

sys.path += (str(ROOT), str(TESTS), str(TESTS / "comm"))

from library import LIBRARIES, build_program
from orders import build_watched_library, link_models, run_orders, watched_python
from programs import compile_kernels

BASE_COMMIT = "24f94713"  # at this commit, calls of comms did not check for other threads
ROUNDS = 9
SECONDS = 3600


def lifetimes(folder: Path) -> Iterator[Figure]:
    """Yields how many orders of operations on the runtime's objects end badly.

    The operations are to close an object, to collect it (garbage collection) and to use it. All
    orders are tried, then once more under sanitizers.
    """
    link_models(folder, compile_kernels(folder))
    library = build_comm_library(find_toolchain(), folder)
    yield _orders_figure("orders of close, collect and use", folder, library, {})
    variables, what = watched_python(), "the same under ASan and UBSan"
    if isinstance(variables, str):
        yield absent(what, "0 of them bad", variables)
        return
    watched = folder / "watched"
    watched.mkdir()
    yield _orders_figure(what, folder, build_watched_library(watched), variables)


def _orders_figure(what: str, folder: Path, library: Path, variables: dict[str, str]) -> Figure:
    say(what)
    try:
        summary = run_orders(folder, library, seconds=SECONDS, variables=variables)
    except AssertionError as error:
        say(str(error))
        return Figure(what, "some are bad", "0 of them bad", False)
    return Figure(what, summary, "0 of them bad", summary.endswith(" 0 of them bad"))


def turns(folder: Path) -> Iterator[Figure]:
    """Yields the time that a call needs to check that no other thread is in the comm.

    The figure is the least time of a call with this library minus the least time with the library
    of BASE_COMMIT, which has no check. The libraries take turns, with 10^7 calls each time.
    """
    what = f"a call on a comm of one rank, over {BASE_COMMIT}"
    before = unpack_runtime(BASE_COMMIT, folder / "before")
    if before is None:
        yield absent(what, "<= 5 ns", f"no commit {BASE_COMMIT}")
        return
    programs = [
        build_program(place, "turns", library)
        for place, library in (
            (folder, build_comm_library(find_toolchain(), folder)),
            (folder / "before", _older_library(before)),
        )
    ]
    times = [[float(output(program)) for program in programs] for _ in range(ROUNDS)]
    now, then = (min(row[n] for row in times) for n in (0, 1))
    yield at_most(what, now - then, 5, "ns", note=f"({then:.1f} to {now:.1f})")


def _older_library(base: Path) -> Path:
    """Builds the communication library from the runtime's sources in the folder `base`.

    Returns its path, which is in the parent folder of `base`.
    """
    sources = [base / "src" / f"{name}.c" for name in ("alloc", "launchers", "notes", "status")]
    sources += sorted((base / "src" / "comm").glob("*.c"))
    includes = (f"-I{base / 'include'}", f"-I{base / 'src'}")
    library = base.parent / "libtcc_comm.so"
    output("cc", *FLAGS, *includes, "-shared", *sources, "-o", library, *LIBRARIES)
    return library
