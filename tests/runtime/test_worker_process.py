"""Processes of trials: the sweep distinguishes every way to end, and survives it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tcc.runtime.alone import measuring_alone
from tcc.runtime.worker_process import JsonWorker, WorkerError

WORKER = """
import ctypes, json, os, resource, signal, sys
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
for line in sys.stdin:
    request = json.loads(line)
    if request == "segv":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGSEGV)
    if request == "hang":
        while True:
            signal.pause()
    answer = {"echo": request}
    if request == "memory":
        try:
            bytearray(20 << 30)
        except MemoryError as error:
            answer = {"error": "MemoryError"}
    if request == "exit":
        print("last words", file=sys.stderr)
        sys.exit(3)
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JsonWorker:
    (tmp_path / "made_up_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    return JsonWorker("made_up_worker", [], tmp_path / "log")


@pytest.mark.parametrize(
    ("request_text", "late", "why"),
    [
        ("segv", False, "SIGSEGV ended it"),
        ("hang", True, "did not answer within 5 s"),
        ("memory", False, "MemoryError"),
        ("exit", False, "its exit code is 3: last words"),
    ],
)
def test_each_failure_has_its_outcome(
    worker: JsonWorker, request_text: str, late: bool, why: str
) -> None:
    with worker:
        assert worker.ask('{"x": 1}', 60) == {"echo": {"x": 1}}
        with pytest.raises(WorkerError) as failed:
            worker.ask(json.dumps(request_text), 5 if late else 60)
        assert failed.value.late is late
        assert why in failed.value.why


_HOLDER = """
import sys
from pathlib import Path
from tcc.runtime.alone import measuring_alone
def waits(): print("waits", flush=True)
with measuring_alone(Path(sys.argv[1]), waits):
    print("in", flush=True)
    sys.stdin.readline()
"""


def test_one_process_at_a_time_measures(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with measuring_alone(tmp_path / "lock", lambda: pytest.fail("nobody else measures")):
        other = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
        assert other.stdout.readline() == "waits\n"
    assert other.stdout.readline() == "in\n"
    other.kill()  # a killed process leaves too
    other.communicate()
    with measuring_alone(tmp_path / "lock", lambda: pytest.fail("nobody else measures")):
        pass
