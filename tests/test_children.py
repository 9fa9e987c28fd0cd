"""Child processes end whenever the process that started them ends, and errors describe the
reason."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tcc.cli.ranks import run_ranks
from tcc.errors import UserError
from tcc.runtime.children import ending, signal_name

from .processes import started

SECONDS = 60  # until a process that lives on counts as a failure

# No command reads a pipe.
RANKS = """
import sys
from tcc.runtime.rank_processes import run_ranks
run_ranks(2, False, "import sys; open(sys.argv[1]).read()", [sys.argv[1] + "/{rank}"], print)
"""
# A rank with a worker, whose parent is not a child of the launcher.
RANKS_WITH_WORKERS = """
import sys
from tcc.runtime.rank_processes import run_ranks
program = (
    f"import sys; sys.path.insert(0, {sys.argv[1]!r}); "
    "from tcc.backends.workers import WorkerPool; pool = WorkerPool('fifo_worker', 1); "
    "pool.answers([pool.submit(sys.argv[1])])"
)
run_ranks(2, False, program, [sys.argv[1] + "/{rank}"], print)
"""
# A worker that takes a request and does not answer.
WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
from tcc.backends.workers import WorkerPool
pool = WorkerPool("fifo_worker", 2)
numbers = [pool.submit(f"{sys.argv[1]}/{number}") for number in range(2)]
pool.answers(numbers)
"""
FIFO_WORKER = """
from tcc.backends.workers import serve
def main():
    serve(lambda path: (open(path).read(), ""))
"""
# A peer prepares its model when it starts.
PEER = """
import sys
from tcc.runtime.worker import serve
def prepare(model, *_):
    model.read_text()
serve(prepare)
"""
PEERS = """
import subprocess, sys
folder = sys.argv[1]
processes = [
    subprocess.Popen(
        [sys.executable, folder + "/peer.py", f"{folder}/{number}", "none", "1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    for number in range(2)
]
processes[0].wait()
"""


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """Creates the pipes `0` and `1` in the folder, and yields a function that opens them once both
    have readers. A pipe reports an error at this end when its reader ends."""
    ends: list[int] = []

    def open_ends() -> list[int]:
        ends.extend(os.open(tmp_path / str(number), os.O_WRONLY) for number in range(2))
        return ends

    for number in range(2):
        os.mkfifo(tmp_path / str(number))
    (tmp_path / "fifo_worker.py").write_text(FIFO_WORKER)
    (tmp_path / "peer.py").write_text(PEER)
    yield open_ends
    for end in ends:
        os.close(end)


def wait_for_ends(ends: list[int]) -> None:
    for end in ends:
        waiting = select.poll()
        waiting.register(end, 0)
        assert waiting.poll(SECONDS * 1000) == [(end, select.POLLERR)], "a child lives on"


LAUNCHERS = {
    "ranks": RANKS, "workers": WORKER, "workers of ranks": RANKS_WITH_WORKERS, "peers": PEERS,
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGRTMIN + 5])
def test_children_end_with_their_launcher(
    launcher: str, sent: int, tmp_path: Path, readers: Callable[[], list[int]]
) -> None:
    """Each child reads a pipe to which nobody writes."""
    words = [sys.executable, "-c", launcher, str(tmp_path)]
    with started(words, stderr=subprocess.DEVNULL) as process:
        ends = readers()
        process.send_signal(sent)
        process.wait(SECONDS)
        wait_for_ends(ends)


def test_a_child_that_comes_too_late_ends(tmp_path: Path) -> None:
    """Its launcher ended before the child could register with the kernel."""
    read, write = os.pipe()
    os.close(write)
    script = "from tcc.runtime.children import end_with_parent; end_with_parent(); print('lives')"
    process = subprocess.run([sys.executable, "-c", script], stdin=read, stdout=subprocess.PIPE)
    os.close(read)
    assert (process.returncode, process.stdout) == (137, b"")


def test_a_child_lives_as_long_as_its_launcher(tmp_path: Path) -> None:
    script = "from tcc.runtime.children import end_with_parent; end_with_parent(); print('lives')"
    process = subprocess.run([sys.executable, "-c", script], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE)  # fmt: skip
    assert (process.returncode, process.stdout) == (0, b"lives\n")


def test_a_child_without_standard_input_lives() -> None:
    script = "from tcc.runtime.children import end_with_parent; end_with_parent(); print('lives')"
    process = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, script], stdout=subprocess.PIPE
    )
    assert (process.returncode, process.stdout) == (0, b"lives\n")


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns a function that runs a script as a failing rank, and returns the reason."""

    def reason(script: str) -> str:
        program = tmp_path / "rank"
        program.write_text(f"#!{PYTHON}\nimport os, signal, resource, sys\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        with pytest.raises(UserError, match="rank 0 failed, and the others were ended") as caught:
            run_ranks(1, False, [])
        return caught.value.why

    return reason


PYTHON = sys.executable


def test_each_signal_that_ends_a_rank_is_a_sentence(rank: Callable[[str], str]) -> None:
    harmless = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT}
    stopping = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    deadly = signal.valid_signals() - harmless - stopping
    assert {signal.SIGKILL, signal.SIGRTMIN, 40, signal.SIGRTMAX} <= deadly
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN, 40, 63, signal.SIGRTMAX):
        said = rank(
            "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
            f"if {number:d} not in ({signal.SIGKILL:d},):\n"
            f"    signal.signal({number:d}, signal.SIG_DFL)\n"
            f"os.kill(os.getpid(), {number:d})\nsignal.pause()"
        )
        assert said == ending(-number)
    for number in range(1, signal.SIGRTMAX + 1):
        assert ending(-number).startswith(f"{signal_name(number)} ended it")


def test_words_for_signals() -> None:
    assert ending(3) == "its exit code is 3"
    assert ending(-signal.SIGSEGV) == "SIGSEGV ended it"
    assert ending(-signal.SIGSEGV, dumped=True) == "SIGSEGV ended it and left a core dump"
    assert ending(-signal.SIGKILL) == "SIGKILL ended it, as the kernel does where memory runs out"
    assert ending(-signal.SIGRTMIN) == "SIGRTMIN ended it"
    assert ending(-signal.SIGRTMIN - 3) == "SIGRTMIN+3 ended it"
    assert ending(-signal.SIGRTMAX) == "SIGRTMAX ended it"
    assert ending(-32) == "signal 32 ended it"


def test_a_core_dump_is_told(rank: Callable[[str], str], tmp_path: Path) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    if most == 0:
        pytest.skip("this process may write no core dump")
    said = rank(
        f"os.chdir({str(tmp_path)!r})\n"
        f"resource.setrlimit(resource.RLIMIT_CORE, ({most}, {most}))\n"
        "os.abort()"
    )
    if said == "SIGABRT ended it":
        pytest.skip("the kernel wrote no core dump")
    assert said == "SIGABRT ended it and left a core dump"


def test_a_rank_that_leaves_a_process_behind_has_ended(rank: Callable[[str], str]) -> None:
    """The process has the rank's output open, and lives as long as this process."""
    assert rank("if os.fork():\n    os._exit(4)\nsignal.alarm(30)\nsignal.pause()") == (
        "its exit code is 4"
    )


def test_a_rank_that_prints_no_text_and_one_that_is_no_program(
    rank: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert rank("os.write(2, b'\\xff\\xfe'); os._exit(5)") == "its exit code is 5"
    assert "rank 0: \N{REPLACEMENT CHARACTER}" in capfd.readouterr().err
    monkeypatch.setattr(sys, "executable", os.devnull)
    with pytest.raises(UserError, match="rank 0 cannot be started"):
        run_ranks(1, False, [])
