"""No process leaves temporary files, however it ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pytest
from onnx import helper, save
from tcc import temporary as temporary_module
from tcc.backends.artifact.publish import folder_beside
from tcc.temporary import temporary_folder

from tests.lib.agreement import FLOAT, model_of, value
from tests.processes import started

ROOT = Path(__file__).parents[2]


# The sources of the helper, and of the modules with which it enters and removes folders.
FILES = {temporary_module.__file__, contextlib.__file__, shutil.__file__}
Tracer: TypeAlias = Callable[[FrameType, str, object], Any]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Saves a model of one Relu of symbolic size."""
    ports = [[value(name, FLOAT, ["n"])] for name in "xy"]
    save(model_of([helper.make_node("Relu", ["x"], ["y"])], *ports), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets TMPDIR for the processes that a test starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


FORK = """
import os, sys, tempfile
from pathlib import Path
import tcc
module = tcc.compile(sys.argv[1], jobs=1)
(folder,) = Path(tempfile.gettempdir()).iterdir()
if os.fork() == 0:
    del module
    sys.exit()
os.wait()
assert (folder / "model.so").exists()
module.save(sys.argv[2])
"""


def test_a_fork_leaves_its_parents_artifact_which_goes_with_the_parent(
    model: Path, temporary: Path
) -> None:
    saved = model.with_name("saved.so")
    subprocess.run([sys.executable, "-c", FORK, model, saved], check=True)
    assert saved.exists()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("made", "arguments"),
    [
        pytest.param("tcc-*", ["run"], id="cpu"),
        pytest.param(
            "tcc-triton-*/*",
            ["compile", "--target", "cuda:sm_80", "--output", "m.so"],
            id="cuda",
            marks=pytest.mark.gpu,
        ),
    ],
)
def test_a_signal_in_a_compile_leaves_nothing(
    model: Path, temporary: Path, made: str, arguments: list[str], sent: signal.Signals
) -> None:
    command = [sys.executable, "-m", "tcc", *arguments, str(model)]
    with started(command, stderr=subprocess.PIPE, cwd=model.parent) as process:
        while process.poll() is None and not list(temporary.glob(made)):
            threading.Event().wait(0.001)
        process.send_signal(sent)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in model.parent.iterdir()) == ["m.onnx", "temporary"]


# an interruption drops iterators
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interruption_at_any_step_leaves_no_folder(temporary: Path) -> None:
    """Each opcode of the helper, and of the functions that it calls, is interrupted in turn."""
    steps = itertools.count()
    while (step := next(steps)) < 10_000:
        left = step
        interrupted = False

        def at(frame: FrameType, event: str, _: object) -> Tracer | None:
            nonlocal left, interrupted
            if frame.f_code.co_filename not in FILES:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode" and not interrupted:
                left -= 1
                if left < 0:
                    interrupted = True
                    raise KeyboardInterrupt
            return at

        before = sys.gettrace()
        sys.settrace(at)
        try:
            with temporary_folder(parent=temporary) as folder:
                (folder / "file").touch()
        except (KeyboardInterrupt, OSError):
            pass  # rmtree of Python 3.11 may close a file twice if it is interrupted
        finally:
            sys.settrace(before)
        assert list(temporary.iterdir()) == [], f"interrupted at step {step}"
        if not interrupted:
            break
    assert step > 50


def test_all_folders_for_a_moment_are_made_by_that_helper() -> None:
    modules = [
        path
        for folder in ("compiler", "passes", "backends", "runtime")
        for path in (ROOT / folder).rglob("*.py")
        if re.search("TemporaryDirectory|mkdtemp", path.read_text())
    ]
    assert modules == []


def test_the_test_script_names_leftover_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.setenv("TMPDIR", os.environ.get("TMPDIR", "/tmp"))  # the script sets it anew
    loader = SourceFileLoader("script", str(ROOT / "scripts" / "test"))
    spec = spec_from_loader("script", loader)
    assert spec is not None
    script = module_from_spec(spec)
    loader.exec_module(script)
    failed: list[str] = []
    with script.own_temporary_files(failed):
        folder = Path(os.environ["TMPDIR"])
        (folder / "pytest-of-me").mkdir()
    assert (failed, folder.exists()) == ([], False)
    with script.own_temporary_files(failed):
        folder = Path(os.environ["TMPDIR"])
        (folder / "tcc-kernel-1").mkdir()
        (folder / "tcc-kernel-1" / "k.ll").touch()
        (folder / "odd").touch()
    assert (failed, folder.exists()) == (["temporary files"], False)
    assert capsys.readouterr().out == "left behind: odd, tcc-kernel-1 (k.ll)\n"


KILLED = """
import os, signal, sys, time
from pathlib import Path
from tcc.backends.artifact.publish import folder_beside

with folder_beside(Path(sys.argv[1]), "the artifact") as folder:
    (folder / "object0.o").write_bytes(bytes(9))
    print(folder, flush=True)
    sys.stdin.read() if sys.argv[2] == "waits" else os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_compile_removes_files_of_a_killed_compile_beside_its_output(tmp_path: Path) -> None:
    """Files of a running compile stay, and so do files whose names only look similar."""
    out = tmp_path / "m.so"
    command = (sys.executable, "-c", KILLED, str(out))
    subprocess.run((*command, "dies"), check=False, stdout=subprocess.DEVNULL)
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / ".tcc-made-notes").write_text("a file of the user's")
    with started([*command, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        assert living.stdin is not None
        assert living.stdout is not None
        at_work = Path(living.stdout.readline().strip())
        assert {path.name for path in tmp_path.iterdir()} == {at_work.name, ".tcc-made-notes"}
        with folder_beside(out, "the artifact") as folder:
            assert folder.exists()
            assert (at_work / "object0.o").exists()
    living.stdin.close()
    living.stdout.close()
    assert {path.name for path in tmp_path.iterdir()} == {at_work.name, ".tcc-made-notes"}
    with folder_beside(out, "the artifact"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".tcc-made-notes"]
