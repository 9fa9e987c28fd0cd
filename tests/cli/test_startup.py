"""A command loads few modules, checks its arguments first, and ends cleanly if interrupted while it
loads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from tcc import cli
from tcc.cli.commands import COMMANDS
from tcc.cli.peers import peer

SOFTMAX = """<ir_version: 9, opset_import: ["": 17]>
    three (float[3] x) => (float[3] y) { y = Softmax(x) }"""
# Installed packages that tcc's own modules import, except `click`.
PACKAGES = frozenset(
    "google llvmlite networkx numpy onnx onnxruntime openvino rich torch triton tvm_ffi".split()
)
# A standard module that only files of settings and of machines need.
TOML = "tomllib"

# Runs the command line `sys.argv[2:]`; the last line of stderr names the packages that it loaded.
LOADED = """
import atexit, sys
packages = {*sys.argv.pop(1).split()}
atexit.register(lambda: print("loaded", *sys.modules.keys() & packages, file=sys.stderr))
from tcc.__main__ import main
main()
"""
# Runs a command line with an interrupt at the first import of a module.
INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Finder:
    name = sys.argv.pop(1)
    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
from tcc.__main__ import main
main()
"""


def python(code: str, *arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with model.onnx, its artifact model.so, and its input x.npy."""
    directory = tmp_path_factory.mktemp("startup")
    onnx.save(onnx.parser.parse_model(SOFTMAX), directory / "model.onnx")
    np.save(directory / "x.npy", np.ones(3, np.float32))
    assert cli.execute(["compile", f"{directory}/model.onnx", "-o", f"{directory}/model.so"]) == 0
    return directory


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("--version", ""),
        ("--help", ""),
        ("compile --help", ""),
        ("doctor --help", ""),
        *((f"{name} --help", "numpy") for name in ("bench", "inspect", "ops", "run")),
        ("verify --help", ""),
        ("quantize --help", ""),
        ("run model.so --input x=@x.npy", "numpy"),
        ("inspect model.so", "numpy rich"),
        ("inspect model.so --kernels", "numpy rich"),
        ("bench model.so --input x=@x.npy --rounds 1 --seconds 0.001", "numpy rich"),
        ("ops", "numpy rich"),
        ("doctor", "llvmlite rich"),
        ("compile model.onnx -o a.so", "numpy onnx google llvmlite rich"),
        ("compile model.onnx -o a.so --cpu x86-64-v3 --stop-after import", "numpy onnx google"),
        ("compile model.onnx --target c -o a.c", "numpy onnx google rich"),
        ("compile model.onnx --target cuda:sm_90 --stop-after partition", "numpy onnx google"),
    ],
)
def test_a_command_loads_only_packages_that_it_uses(
    command: str, allowed: str, folder: Path
) -> None:
    process = python(LOADED, " ".join(sorted({*PACKAGES, TOML})), *command.split(), folder=folder)
    assert process.returncode == 0, process.stderr
    said, *packages = process.stderr.splitlines()[-1].split()
    assert said == "loaded"
    assert set(packages) <= set(allowed.split())


def test_the_list_of_commands_repeats_the_help_of_each_command() -> None:
    """The list of commands stands apart from the commands, so that it loads none of them."""
    for name, line in COMMANDS.items():
        command = cli.cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert command.name == name
        first = " ".join((command.help or "").split())
        assert first.startswith(line.rstrip(".").partition(",")[0].partition(":")[0])


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("tcc.cli.commands", "--version"),
        ("click", "--help"),
        ("tcc.cli.run", "run model.so"),
        ("numpy", "run model.so"),
        ("tcc.driver", "compile model.onnx -o b.so"),
        ("onnx", "compile model.onnx -o b.so"),
        ("llvmlite.binding", "compile model.onnx -o b.so"),
    ],
)
def test_an_interrupt_while_modules_load_is_one_word(
    module: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine, lines of progress would come before the message.
    monkeypatch.setenv("TCC_LOG", "quiet")
    process = python(INTERRUPTED, module, *command.split(), folder=folder)
    assert (process.returncode, process.stdout, process.stderr.strip()) == (130, "", "interrupted")
    assert not (folder / "b.so").exists()


def test_an_interrupt_waits_for_an_import(tmp_path: Path) -> None:
    """C extensions do not expect an exception while they load."""
    lines = (
        "import signal",
        "signal.raise_signal(signal.SIGINT)",
        "print('loaded', flush=True)",
        "answer = 42",
    )
    (tmp_path / "slow.py").write_text("\n".join(lines))
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)",
        "from tcc.later import later",
        "try: later('slow').answer",
        "except KeyboardInterrupt: print('interrupted')",
    )
    process = python("\n".join(code), folder=tmp_path)
    assert (process.stdout, process.stderr) == ("loaded\ninterrupted\n", "")


def test_an_ignored_interrupt_stays_ignored(folder: Path) -> None:
    code = INTERRUPTED.replace("signal.default_int_handler", "signal.SIG_IGN")
    process = python(code, "click", "--version", folder=folder)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_missing_compiler_is_reported_before_the_model_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert cli.execute(["compile", str(folder / "absent.onnx")]) == 3
    assert "no C compiler was found" in capsys.readouterr().err
    for arguments in (["--stop-after", "import"], ["--target", "c"]):
        assert cli.execute(["compile", str(folder / "absent.onnx"), *arguments]) == 2


def test_missing_triton_is_reported_before_the_model_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert cli.execute(["compile", str(folder / "absent.onnx"), "--target", "cuda:sm_90"]) == 3
    assert "pip install 'tcc[gpu]'" in capsys.readouterr().err


def test_a_missing_peer_is_reported_before_the_model_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = replace(peer.PEERS["ort"], package="no.such")
    rows = MappingProxyType({**peer.PEERS, "ort": row})
    monkeypatch.setattr("tcc.cli.peers.peer.PEERS", rows)
    assert cli.execute(["bench", str(folder / "absent.onnx"), "--peers", "ort"]) == 3
    assert "ONNX Runtime is not installed" in capsys.readouterr().err
