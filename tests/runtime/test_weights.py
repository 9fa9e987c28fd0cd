"""Large weights are mapped, shared between processes through one memory file, or copied."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import programs
import pytest
import tcc
from tcc.artifact import find_weights, read_manifest
from tcc.backends.artifact.toolchain import runtime_folder

SIZE = 8 << 20
# Runs the model, prints how its weights are mapped, and stays until it is told to end.
PROCESS = """
import os, sys
import numpy as np
from tcc.runtime import load

module = load(sys.argv[1], threads=1)

def told():
    assert module(np.ones(3, np.float32)).tolist() == [2, 3, 4]
    kinds = set()
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = (int(end, 16) for end in line.split()[0].split("-"))
            writable = line.split()[1][1] == "w"
            if high - low >= 8 << 20 and not writable and line.split()[1][0] == "r":
                kinds |= {kind for kind in ("memfd:tcc-weights", sys.argv[1].rsplit("/")[-1])
                          if kind in line}
    print(*sorted(kinds) or ["copied"], flush=True)

told()
for line in sys.stdin:
    told()
"""

Start: TypeAlias = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def artifact(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program, weights = programs.mlp()
    path = tmp_path_factory.mktemp("large") / "large.so"
    programs.link(program, kernels, path, weights=[weights.ljust(SIZE, b"\1")])
    return path


@pytest.fixture
def start(artifact: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as ending:

        def begin(choice: str = "share", before: str = "") -> subprocess.Popen[str]:
            environment = {"PYTHONPATH": ":".join(sys.path), "TCC_WEIGHTS": choice}
            process = subprocess.Popen(
                (sys.executable, "-c", before + PROCESS, str(artifact)), env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            ending.enter_context(process)
            ending.callback(process.kill)
            return process

        yield begin


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def again(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return told(process)


def memory_files(process: subprocess.Popen[str]) -> set[int]:
    """Returns the inodes of the memory files of weights that a process holds."""
    inodes = set()
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        if "memfd:tcc-weights" in os.readlink(entry):
            inodes.add(entry.stat().st_ino)
    return inodes


def shared_bytes(process: subprocess.Popen[str]) -> int:
    """Returns the bytes of the memory file that the process shares with others."""
    total, inside = 0, False
    for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = "memfd:tcc-weights" in line
        elif inside and line.startswith("Shared_"):
            total += int(line.split()[1]) << 10
    return total


def huge_pages_in_memory_files() -> bool:
    """Returns True if the system merges pages of memory files into huge pages."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, *(ctypes.c_size_t,) * 5)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    file, huge = os.memfd_create("probe"), 2 << 20
    os.write(file, b"\1" * huge)
    room = libc.mmap(None, 2 * huge, 0, 0x22, 2**64 - 1, 0)
    base = libc.mmap(room + -room % huge, huge, 1, 0x11, file, 0)
    os.close(file)
    return bool(libc.madvise(base, huge, 25) == 0)


shares = pytest.mark.skipif(
    not huge_pages_in_memory_files(), reason="memory files have no huge pages here"
)


@shares
def test_processes_share_one_memory_file_that_outlives_its_maker(start: Start) -> None:
    first = start()
    assert told(first) == "memfd:tcc-weights"
    second = start()
    assert told(second) == "memfd:tcc-weights"
    assert memory_files(first) == memory_files(second) != set()
    assert shared_bytes(second) >= SIZE
    first.kill()
    first.wait()
    assert again(second) == "memfd:tcc-weights"
    third = start()
    assert told(third) == "memfd:tcc-weights"
    assert memory_files(third) == memory_files(second)


@shares
@pytest.mark.parametrize("trial", range(8))
def test_processes_that_start_together_make_one(start: Start, trial: int) -> None:
    """Without the fix, two processes that looked at the same moment each created a file in one of
    five trials."""
    processes = [start() for _ in range(6)]
    assert [told(process) for process in processes] == ["memfd:tcc-weights"] * 6
    assert len(set.union(*map(memory_files, processes))) == 1


def another_file(process: subprocess.Popen[str], fault: str) -> int:
    """Ends the process, and creates a memory file like its own except for one fault."""
    (entry,) = (
        e
        for e in Path(f"/proc/{process.pid}/fd").iterdir()
        if "memfd:tcc-weights" in os.readlink(e)
    )
    name = os.readlink(entry).removeprefix("/memfd:").removesuffix(" (deleted)")
    content = bytearray(entry.read_bytes())
    process.kill()
    process.wait()
    if fault == "changed":
        content[-1] ^= 1
    if fault == "short":
        del content[-4096:]
    impostor = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.write(impostor, content)
    if fault != "open":
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(impostor, fcntl.F_ADD_SEALS, seals)
    return impostor


@shares
@pytest.mark.parametrize("fault", ["open", "changed", "short"])
def test_a_file_that_is_not_sealed_and_equal_is_not_used(start: Start, fault: str) -> None:
    first = start()
    assert told(first) == "memfd:tcc-weights"
    impostor = another_file(first, fault)
    second = start()
    assert told(second) == "memfd:tcc-weights"
    assert os.fstat(impostor).st_ino not in memory_files(second)
    os.close(impostor)


@shares
def test_the_pages_of_the_file_serve_where_the_one_memory_file_is_not_equal(start: Start) -> None:
    """A process that may not create a file of this size has mapped the other file to compare it."""
    first = start()
    assert told(first) == "memfd:tcc-weights"
    impostor = another_file(first, "changed")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    assert told(start(before=limit)) == "large.so"
    os.close(impostor)


@shares
def test_a_lock_that_a_stranger_holds_delays_nobody(start: Start, artifact: Path) -> None:
    """Everyone who can read the file can lock it."""

    def seconds() -> float:
        begun = time.monotonic()
        process = start()
        assert told(process) == "memfd:tcc-weights"
        process.kill()
        process.wait()
        return time.monotonic() - begun

    free = min(seconds() for _ in range(2))
    with artifact.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert min(seconds() for _ in range(2)) < free + 0.5
        several = [start() for _ in range(3)]
        assert [told(process) for process in several] == ["memfd:tcc-weights"] * 3
        assert len(set.union(*map(memory_files, several))) == 1


@shares
@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file in /")
def test_a_file_that_has_no_seals_is_not_used(start: Start) -> None:
    """A file on a disk may have the name that /proc shows for a memory file."""
    first = start()
    assert told(first) == "memfd:tcc-weights"
    (entry,) = (
        e for e in Path(f"/proc/{first.pid}/fd").iterdir() if "memfd:tcc-weights" in os.readlink(e)
    )
    target, content = Path(os.readlink(entry)), entry.read_bytes()
    first.kill()
    first.wait()
    target.write_bytes(content)
    try:
        with target.open("rb") as file:
            second = start()
            assert told(second) == "memfd:tcc-weights"
            assert os.fstat(file.fileno()).st_ino not in memory_files(second)
    finally:
        target.unlink()


@pytest.mark.parametrize(("choice", "found"), [("map", "large.so"), ("copy", "copied")])
def test_the_user_chooses(start: Start, choice: str, found: str) -> None:
    process = start(choice)
    assert told(process) == found
    assert memory_files(process) == set()


def test_an_unknown_choice_is_refused(start: Start) -> None:
    process = start("both")
    assert process.wait() == 1
    assert process.stderr is not None
    assert "TCC_WEIGHTS is 'both': expected map, share or copy" in process.stderr.read()


# ---- their hash ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(artifact: Path) -> Path:
    """Returns the artifact with one bit of its weights flipped."""
    place = find_weights(artifact, read_manifest(artifact))
    assert place is not None
    data = bytearray(artifact.read_bytes())
    data[place.offset + SIZE - 1] ^= 1
    path = artifact.with_name("damaged.so")
    path.write_bytes(data)
    return path


LOADED = "import sys; from tcc.runtime import load; load(sys.argv[1], threads=1)"


@pytest.mark.parametrize(
    ("told", "sound", "error"),
    [
        ("", True, ""),
        ("0", True, ""),
        ("1", False, "their hash is another one"),
        ("yes", False, "TCC_VERIFY is 'yes': expected 0 or 1"),
    ],
)
@pytest.mark.parametrize("choice", ["map", "share", "copy"])
def test_weights_are_compared_with_their_hash_on_request(
    damaged: Path, artifact: Path, told: str, sound: bool, error: str, choice: str
) -> None:
    variables = {"PYTHONPATH": ":".join(sys.path), "TCC_VERIFY": told, "TCC_WEIGHTS": choice}
    for path, works in ((damaged, sound), (artifact, told != "yes")):
        command = (sys.executable, "-c", LOADED, str(path))
        process = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False
        )
        assert (process.returncode == 0) is works, process.stderr
        assert works or error in process.stderr


def test_a_load_compares_weights_on_request(damaged: Path, artifact: Path) -> None:
    tcc.load(artifact, 1, check=True)
    tcc.load(damaged, 1)
    with pytest.raises(tcc.TccError, match="weights are damaged"):
        tcc.load(damaged, 1, check=True)


def test_the_hash_is_sha256(tmp_path: Path) -> None:
    source, library = runtime_folder() / "src" / "sha256.c", tmp_path / "sha256.so"
    subprocess.run(("cc", "-std=c11", "-shared", "-fPIC", str(source), "-o", library), check=True)
    digest = ctypes.create_string_buffer(32)
    rng = random.Random(256)
    function = ctypes.CDLL(str(library)).tcc_sha256
    for size in (*range(200), 100_000):
        data = rng.randbytes(size)
        function(data, ctypes.c_size_t(size), digest)
        assert digest.raw == hashlib.sha256(data).digest(), size
