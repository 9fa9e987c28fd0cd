"""A C program runs an artifact: plainly, under AddressSanitizer, and under valgrind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

import programs
from tcc.backends.artifact.toolchain import runtime_folder

CLIENT = Path(__file__).with_name("client.c")
# the sum of relu(ones) + (1, 2, 3, 4)
EXPECTED = "output 0: 16 bytes\n14\n"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return programs.compile_kernels(tmp_path_factory.mktemp("kernels"))


def build(folder: Path, kernels: bytes, *flags: str) -> tuple[Path, Path]:
    """Builds the client and an artifact for it; returns both paths."""
    include = f"-I{runtime_folder() / 'include'}"
    command = ("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", *flags, include, str(CLIENT))
    subprocess.run((*command, "-o", "client", "-ldl"), cwd=folder, check=True)
    program, weights = programs.mlp()
    programs.link(program, kernels, folder / "mini.so", weights=[weights])
    return folder / "client", folder / "mini.so"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_c_program_of_under_60_lines(kernels: bytes, tmp_path: Path) -> None:
    assert len(CLIENT.read_text().splitlines()) < 60
    client, artifact = build(tmp_path, kernels)
    result = run(str(client), str(artifact))
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, "")


def test_address_sanitizer_finds_nothing(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sanitize = "-fsanitize=address"
    monkeypatch.setenv("CC", f"cc {sanitize}")
    client, artifact = build(tmp_path, kernels, sanitize)
    result = run(str(client), str(artifact), ASAN_OPTIONS="detect_leaks=1")
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, "")


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_valgrind_finds_nothing(kernels: bytes, tmp_path: Path) -> None:
    client, artifact = build(tmp_path, kernels)
    result = run(
        "valgrind", "-q", "--error-exitcode=9", "--leak-check=full", str(client), str(artifact),
        TCC_NUM_THREADS="1",
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, EXPECTED), result.stderr
