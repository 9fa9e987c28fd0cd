"""Several files at one path, one after the other: each module runs the model of its own file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import programs
import pytest
from tcc.runtime import Module, load
from tcc.runtime.reports import RuntimeFailure

X = np.ones(64, np.float32)
Place = Callable[[Path, Path], Any]


@pytest.fixture(scope="module")
def artifacts(kernels: bytes, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Returns artifacts that add i times 1, 2, 3, ... to their input."""
    folder = tmp_path_factory.mktemp("artifacts")
    program, weights = programs.mlp()
    for i in range(1, 4):
        scaled = np.frombuffer(weights, np.float32) * np.float32(i)
        programs.link(program, kernels, folder / f"{i}.so", weights=[scaled.tobytes()])
    return [folder / f"{i}.so" for i in range(1, 4)]


def rename(new: Path, path: Path) -> None:
    sibling = path.with_suffix(".new")
    shutil.copyfile(new, sibling)
    os.replace(sibling, path)


def overwrite(new: Path, path: Path) -> None:
    inode = path.stat().st_ino if path.exists() else None
    shutil.copyfile(new, path)
    assert inode in (None, path.stat().st_ino)


def factor(module: Module) -> int:
    factors = (module(X) - X) / np.arange(1, 65, dtype=np.float32)
    assert np.all(factors == factors[0])
    return int(factors[0])


def test_renamed_files_all_stay_loaded(artifacts: list[Path], tmp_path: Path) -> None:
    path, modules = tmp_path / "m.so", []
    for artifact in artifacts:
        rename(artifact, path)
        modules.append(load(path, 2))
        assert [factor(module) for module in modules] == list(range(1, len(modules) + 1))
    assert [factor(load(path)), factor(modules[0])] == [3, 1]


@pytest.mark.parametrize("place", [rename, overwrite])
def test_a_new_file_is_loaded_after_the_old_module_is_gone(
    artifacts: list[Path], tmp_path: Path, place: Place
) -> None:
    path = tmp_path / "m.so"
    for expected, artifact in enumerate(artifacts, 1):
        place(artifact, path)
        module = load(path, 2)
        assert factor(module) == expected
        del module
        assert factor(load(path)) == expected


def test_an_old_file_that_comes_back_is_the_old_model(
    artifacts: list[Path], tmp_path: Path
) -> None:
    path, saved = tmp_path / "m.so", tmp_path / "kept.so"
    rename(artifacts[0], path)
    old = load(path)
    path.rename(saved)
    rename(artifacts[1], path)
    new = load(path)
    os.replace(saved, path)
    assert [factor(old), factor(new), factor(load(path))] == [1, 2, 1]


def test_a_file_reached_by_two_paths_is_loaded_once(artifacts: list[Path], tmp_path: Path) -> None:
    shutil.copyfile(artifacts[0], tmp_path / "a.so")
    (tmp_path / "b.so").symlink_to(tmp_path / "a.so")
    first, second = load(tmp_path / "a.so"), load(tmp_path / "b.so")
    lines = Path("/proc/self/maps").read_text().splitlines()
    readable = [line for line in lines if str(tmp_path) in line and " r" in line]
    assert factor(first) == factor(second) == 1
    assert len(readable) <= 1, "weights are mapped once"


def test_a_module_whose_file_was_overwritten_says_so(artifacts: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    shutil.copyfile(artifacts[0], path)
    old = load(path)
    assert factor(old) == 1
    overwrite(artifacts[1], path)
    assert factor(load(path)) == 2
    with pytest.raises(RuntimeFailure, match="overwritten while it was loaded"):
        old(X)


@pytest.mark.parametrize("place", [rename, overwrite])
def test_a_module_saves_its_own_file_or_none(
    artifacts: list[Path], tmp_path: Path, place: Place
) -> None:
    path, saved = tmp_path / "m.so", tmp_path / "saved.so"
    shutil.copyfile(artifacts[0], path)
    old = load(path)
    place(artifacts[1], path)
    with pytest.raises(RuntimeFailure, match="another file is at its path"):
        old.save(saved)
    assert not saved.exists()
    load(path).save(saved)
    assert factor(load(saved)) == 2


def output_of(code: str, folder: Path) -> str:
    """Returns the output of `code` in a new process, given the two artifacts of `folder`."""
    command = (sys.executable, "-c", code, str(folder / "m.so"), str(folder / "n.so"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(
        command, check=True, env=environment, stdout=subprocess.PIPE, text=True
    )
    return process.stdout


OUTSIDE = """
import ctypes, os, shutil, sys
import numpy as np
from tcc.runtime import load
path, new = sys.argv[1:]
ctypes.CDLL(path)
os.replace(new, path)
print(load(path)(np.zeros(1, np.float32))[0])
"""


def test_a_path_that_dlopen_loaded_before_gets_the_new_file(
    artifacts: list[Path], tmp_path: Path
) -> None:
    for name, artifact in (("m.so", artifacts[0]), ("n.so", artifacts[1])):
        shutil.copyfile(artifact, tmp_path / name)
    assert float(output_of(OUTSIDE, tmp_path)) == 2


SHARED_WORKERS = """
import sys
import numpy as np
from tcc.runtime import load
first, second = sys.argv[1:]
x = np.ones(64, np.float32)
load(first, 2)(x)
other = load(second, 2)
open(first, "r+b").truncate(4096)
print(all((other(x)[:3] == [3, 5, 7]).all() for _ in range(50)))
"""


def test_workers_outlive_the_file_they_came_from(artifacts: list[Path], tmp_path: Path) -> None:
    for name, artifact in (("m.so", artifacts[0]), ("n.so", artifacts[1])):
        shutil.copyfile(artifact, tmp_path / name)
    assert output_of(SHARED_WORKERS, tmp_path) == "True\n"


def test_the_number_of_a_loaded_file_is_not_given_to_another(
    artifacts: list[Path], tmp_path: Path
) -> None:
    """The dynamic linker treats two files with one inode number as one library."""
    path = tmp_path / "m.so"
    shutil.copyfile(artifacts[0], path)
    number = path.stat().st_ino
    module = load(path, 2)
    assert factor(module) == 1
    del module  # its weights are mapped from the file too
    path.unlink()
    mapped = [line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines()]
    assert str(number) in mapped
