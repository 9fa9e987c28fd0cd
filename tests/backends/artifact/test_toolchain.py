"""Tests of the toolchain: variables do not change its results, and killed tools leave no files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tcc.backends.artifact.toolchain import find_toolchain, run_tool
from tcc.errors import DISK_ERRORS, ToolError, UserError

SOURCE = "#include <stddef.h>\nsize_t size(void) { return sizeof(void *); }\n"


def made(folder: Path) -> bytes:
    """Compiles and links a small library and returns its bytes."""
    folder.mkdir()
    (folder / "x.c").write_text(SOURCE)
    command = (*find_toolchain().command, "-shared", "-fPIC", "-O1", "x.c", "-o", "x.so")
    run_tool(command, folder)
    return (folder / "x.so").read_bytes()


def test_no_environment_variable_changes_the_compiled_and_linked_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = made(tmp_path / "usual")
    include = tmp_path / "include"
    include.mkdir()
    (include / "stddef.h").write_text("typedef unsigned long size_t;\n#define void char\n")
    listing = tmp_path / "dependencies"
    for name, value in {
        "CPATH": include,
        "C_INCLUDE_PATH": include,
        "LIBRARY_PATH": include,
        "COMPILER_PATH": include,
        "GCC_EXEC_PREFIX": "/nonexistent/",
        "GCC_COMPARE_DEBUG": "-g",
        "DEPENDENCIES_OUTPUT": listing,
        "LD_RUN_PATH": "/nonexistent",
        "LDEMULATION": "elf_i386",
        "CFLAGS": "-O0",
        "LDFLAGS": "-Wl,-z,now",
        "CCC_OVERRIDE_OPTIONS": "+-O0",
        "SOURCE_DATE_EPOCH": "7",
        "LC_ALL": "de_DE.UTF-8",
    }.items():
        monkeypatch.setenv(name, str(value))
    assert made(tmp_path / "other") == usual
    assert not listing.exists()


def test_a_tool_that_is_killed_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(ToolError, match="exit code -9"):
        run_tool(("sh", "-c", "touch $TMPDIR/cc.res; kill -9 $$"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", DISK_ERRORS)
def test_a_tool_that_cannot_write_is_an_error_of_the_user(tmp_path: Path, number: int) -> None:
    line = f"ld: final link failed: {os.strerror(number)}"
    with pytest.raises(UserError, match="sh could not write a file") as caught:
        run_tool(("sh", "-c", f"echo usage >&2; echo '{line}' >&2; exit 1"), tmp_path)
    assert caught.value.why == line
