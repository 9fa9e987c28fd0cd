"""Messages that users see, word for word.

Each case runs the command in a folder of its own.  The expected text is in `messages/NAME.txt`:
the exit code, then stderr.  `TCC_UPDATE_GOLDENS=1 scripts/test tests/errors` rewrites the files.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from tcc import cli

GOLDENS = Path(__file__).with_name("messages")


@dataclass(frozen=True)
class Case:
    """One command line; `files` are written to its folder first."""

    arguments: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()


CASES = {
    "compile-missing-file": Case(("compile", "absent.onnx")),
    "compile-unknown-target": Case(("compile", "m.onnx", "--target", "tpu")),
    "compile-unknown-arch": Case(("compile", "m.onnx", "--target", "cpu:riscv")),
    "compile-unknown-cpu": Case(("compile", "m.onnx", "--cpu", "z80")),
    "compile-bad-shape": Case(("compile", "m.onnx", "--input", "x=1,3")),
    "compile-bad-state": Case(("compile", "m.onnx", "--state", "past")),
    "compile-bad-level": Case(("compile", "m.onnx", "-O", "9")),
    "compile-bad-name": Case(("compile", "m.onnx", "--name", "a-b")),
    "run-missing-file": Case(("run", "absent.so")),
    "inspect-missing-file": Case(("inspect", "absent.so")),
    "bench-unknown-peer": Case(("bench", "m.onnx", "--peers", "abacus")),
    "bench-peer-of-artifact": Case(("bench", "m.so", "--peers", "ort")),
    "ops-unknown": Case(("ops", "NoSuchOp")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_message_is(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    for file, data in case.files:
        Path(file).write_bytes(data)
    code = cli.execute(case.arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f for f, _ in case.files), (
        "something was left behind"
    )
    found = f"exit {code}\n{err}"
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("TCC_UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(found, encoding="utf-8")
    assert golden.is_file(), "no such golden: TCC_UPDATE_GOLDENS=1 scripts/test tests/errors"
    assert found == golden.read_text(encoding="utf-8")


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*")} == set(CASES)
