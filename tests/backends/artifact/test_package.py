"""Tests of packages: they appear whole, name no folder, and keep a library with its side file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import programs
import pytest
from tcc.backends.artifact.package import complete_package, new_package, package_library
from tcc.errors import UserError
from tcc.options import EMITS
from tcc.runtime import load


def write_package(
    folder: Path,
    kernels: bytes,
    name: str = "mini",
    side: bool = False,
    emit: str = "shared",
) -> None:
    program, weights = programs.mlp()
    options = {"name": name, "weights": [weights], "side_file": side, "emit": emit}
    with new_package(folder, name) as package:
        library = package_library(package, name, EMITS[emit])
        manifest = programs.link(program, kernels, library, **options)
        complete_package(library, "1.2", manifest)


def write_half(folder: Path) -> None:
    """Fails while writing the library of a package."""
    with new_package(folder, "mini") as package:
        library = package_library(package, "mini")
        library.parent.mkdir(parents=True)
        library.write_bytes(b"half")
        raise RuntimeError


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of every file by its path below `folder`."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_package_has_the_files_of_its_description(kernels: bytes, tmp_path: Path) -> None:
    write_package(tmp_path / "new" / "mini", kernels)
    files = contents(tmp_path / "new")
    assert sorted(files) == [
        "mini/include/mini/mini.h",
        "mini/include/tcc.h",
        "mini/include/tcc.hpp",
        "mini/lib/cmake/mini/miniConfig.cmake",
        "mini/lib/mini.so",
        "mini/lib/pkgconfig/mini.pc",
        "mini/rust/mini/Cargo.toml",
        "mini/rust/mini/build.rs",
        "mini/rust/mini/src/lib.rs",
        "mini/rust/mini/src/tcc.rs",
        "mini/rust/mini/src/tcc_abi.rs",
        "mini/rust/mini/src/tcc_elements.rs",
    ]
    assert os.access(package_library(tmp_path / "new" / "mini", "mini"), os.X_OK)
    for name, data in files.items():
        assert bytes(tmp_path) not in data, name
        assert not re.search(rb"@[A-Z]+@", data) or name.endswith(".so"), name
    assert b"Version: 1.2\n" in files["mini/lib/pkgconfig/mini.pc"]


def test_equal_inputs_give_equal_packages(kernels: bytes, tmp_path: Path) -> None:
    write_package(tmp_path / "a", kernels)
    (tmp_path / "b").mkdir()  # An existing folder gets its files one by one.
    write_package(tmp_path / "b", kernels)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    write_package(tmp_path / "b", kernels)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_one_folder_holds_two_packages_and_other_files(kernels: bytes, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "other.so").write_bytes(b"other")
    for name in ("first", "second"):
        write_package(tmp_path, kernels, name)
    libraries = sorted(path.name for path in (tmp_path / "lib").glob("*.so"))
    assert libraries == ["first.so", "other.so", "second.so"]
    assert (tmp_path / "lib" / "other.so").read_bytes() == b"other"


def test_a_moved_package_finds_its_side_file(kernels: bytes, tmp_path: Path) -> None:
    write_package(tmp_path / "first", kernels, side=True)
    package = (tmp_path / "first").rename(tmp_path / "second")
    config = (package / "lib" / "cmake" / "mini" / "miniConfig.cmake").read_text()
    assert "/lib/mini.so.weights" in config
    result = load(package / "lib" / "mini.so")(np.zeros(3, np.float32))
    assert result.tolist() == [1, 2, 3]


@pytest.mark.parametrize("emit", ["shared", "static"])
@pytest.mark.parametrize("before", ["shared", "static"])
@pytest.mark.parametrize("side", [False, True])
def test_a_package_that_is_written_again_keeps_no_old_library_and_side_file(
    kernels: bytes, tmp_path: Path, emit: str, before: str, side: bool
) -> None:
    for name in ("mini", "minimal"):
        write_package(tmp_path / "again", kernels, name, side=not side, emit=before)
        (tmp_path / "again").mkdir(exist_ok=True)
    write_package(tmp_path / "again", kernels, side=side, emit=emit)
    file = f"mini{EMITS[emit]}"
    expected = [file, f"{file}.weights"] if side else [file]
    libraries = (tmp_path / "again" / "lib").glob("mini.*")
    assert sorted(path.name for path in libraries) == expected
    other = f"minimal{EMITS[before]}"
    expected = [other] if side else [other, f"{other}.weights"]
    libraries = (tmp_path / "again" / "lib").glob("minimal.*")
    assert sorted(path.name for path in libraries) == expected


MAIN = '#include "mini/mini.h"\nint main(void) { return !mini_api()->version; }\n'


@pytest.mark.skipif(shutil.which("pkgconf") is None, reason="pkgconf is not installed")
@pytest.mark.parametrize("emit", ["shared", "static"])
def test_pkgconf_quotes_the_spaces_of_a_folder(kernels: bytes, tmp_path: Path, emit: str) -> None:
    folder = tmp_path / "a  folder" / "of (mine)"
    write_package(folder, kernels, emit=emit)
    command = ("pkgconf", "--cflags", "--libs", "mini")
    variables = {"PKG_CONFIG_PATH": str(folder / "lib" / "pkgconfig")}
    flags = subprocess.run(command, env=variables, check=True, capture_output=True, text=True)
    (tmp_path / "main.c").write_text(MAIN)
    words = ("gcc", tmp_path / "main.c", *shlex.split(flags.stdout), "-o", tmp_path / "main")
    subprocess.run(words, check=True)
    subprocess.run(tmp_path / "main", env={"LD_LIBRARY_PATH": str(folder / "lib")}, check=True)


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_compile_leaves_a_folder_as_it_was(
    kernels: bytes, tmp_path: Path, exists: bool
) -> None:
    folder = tmp_path / "package"
    if exists:
        write_package(folder, kernels)
    before = contents(tmp_path)
    with pytest.raises(RuntimeError):
        write_half(folder)
    assert contents(tmp_path) == before
    assert folder.exists() == exists


def test_the_library_follows_its_side_file_and_precedes_what_finds_it(
    kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    replace = os.replace

    def noted(source: Path, target: Path) -> None:
        if tmp_path / "lib" in Path(target).parents:
            names.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr("tcc.backends.artifact.package.os.replace", noted)
    write_package(tmp_path, kernels, side=True)
    assert names[-4:] == ["mini.so.weights", "mini.so", "miniConfig.cmake", "mini.pc"]


def test_a_folder_in_the_place_of_a_file_is_an_error(kernels: bytes, tmp_path: Path) -> None:
    (tmp_path / "lib" / "mini.so").mkdir(parents=True)
    with pytest.raises(UserError, match="the package cannot be written") as caught:
        write_package(tmp_path, kernels)
    assert caught.value.hint == "choose another folder"
    assert not list(tmp_path.glob(".tcc-made-*"))
