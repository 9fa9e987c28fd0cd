"""Modules can be copied, deep-copied and pickled, or report why not."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import Builder, expected_mlp
from tcc.ir.program import Input, State
from tcc.runtime import Module, load

X = np.linspace(-1, 1, 9, dtype=np.float32)


def unpickled(module: Module) -> Module:
    module_copy: Module = pickle.loads(pickle.dumps(module))
    return module_copy


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, unpickled])
def test_a_copy_and_its_original_live_and_die_alone(
    mlp_path: Path, duplicate: Callable[[Module], Module]
) -> None:
    original = load(mlp_path, threads=1)
    module_copy = duplicate(original)
    assert repr(module_copy) == repr(original)
    assert module_copy.manifest == original.manifest
    assert set(module_copy._idle).isdisjoint(original._idle)
    assert module_copy.statistics().threads == 1
    for module in (module_copy, original):
        assert np.array_equal(module(X), expected_mlp(X))
    del module_copy
    gc.collect()
    assert np.array_equal(original(X), expected_mlp(X))
    again = duplicate(original)
    del original
    gc.collect()
    assert np.array_equal(again(X), expected_mlp(X))


def test_a_module_ends_with_its_last_reference(mlp_path: Path) -> None:
    """The module's weights are freed without a collection of cycles."""
    module = load(mlp_path)
    reference = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert reference() is None
    finally:
        gc.enable()


def test_containers_copy_modules_and_results(mlp: Module) -> None:
    container = copy.deepcopy({"model": mlp, "results": mlp(X)})
    assert np.array_equal(container["model"](X), container["results"])


def test_copies_keep_the_folder_of_the_original(mlp_path: Path, tmp_path: Path) -> None:
    """A copy of a compiled model keeps the folder of the artifact, which is removed with its last
    user."""
    original = load(mlp_path)
    module_copy = copy.copy(copy.copy(original))
    assert module_copy._original is not None
    assert module_copy._original._original is original


def test_pickles_outlive_their_file(mlp_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(mlp_path.read_bytes())
    data = pickle.dumps(load(path, threads=1))
    path.unlink()
    module_copy: Module = pickle.loads(data)
    assert np.array_equal(module_copy(X), expected_mlp(X))
    assert module_copy.statistics().threads == 1
    path.write_bytes(b"something else came here")
    assert pickle.loads(data)._image is module_copy._image  # written once, for any number of reads
    with pytest.raises(RuntimeError, match="another file is at its path"):
        pickle.dumps(load_and_replace(mlp_path, tmp_path / "other.so"))


def load_and_replace(source: Path, path: Path) -> Module:
    path.write_bytes(source.read_bytes())
    module = load(path)
    path.unlink()
    path.write_bytes(b"another")
    return module


def test_pickles_load_the_file_that_is_still_there(mlp: Module) -> None:
    assert unpickled(mlp)._image is mlp._image


def test_side_files_are_in_pickles(mlp: Module, mlp_path: Path, tmp_path: Path) -> None:
    for suffix in ("", ".weights"):
        Path(f"{tmp_path / 'model.so'}{suffix}").write_bytes(mlp_path.read_bytes())
    module = load(tmp_path / "model.so")
    module.manifest["weights"]["place"] = "side file"
    _, (_, _, contents, *_) = module.__reduce__()
    assert sorted(contents) == ["", ".weights"]


def work(module: Module, queue: Any) -> None:
    queue.put(module(X).tolist())


def test_workers_take_modules(mlp: Module) -> None:
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    worker = context.Process(target=work, args=(mlp, queue))
    worker.start()
    assert queue.get(timeout=60) == expected_mlp(X).tolist()
    worker.join(60)
    assert worker.exitcode == 0


READS = """import pickle, sys
module = pickle.load(sys.stdin.buffer)
print(module._image.path)
print(module([1.0]).tolist())"""


def test_a_process_leaves_no_files_of_unpickled_modules(mlp_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    path.write_bytes(mlp_path.read_bytes())
    data = pickle.dumps(load(path))
    path.unlink()
    command = [sys.executable, "-c", READS]
    output = subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode()
    source_path, result = output.splitlines()
    assert result == "[2.0]"
    assert not Path(source_path).parent.exists()


def test_state_is_never_copied_in_silence(linked: Callable[..., Module]) -> None:
    b = Builder()
    one, four = b.const(1), b.const(4)
    b.input("x", "f32", [one], "[1]")
    x, total = b.buffer(Input(0)), b.buffer(State(4))
    y = b.output("y", "f32", [one], "[1]")
    b.allocate(y, four)
    b.launch("accumulate", one, [x, total, y])
    module = linked(b)
    for duplicate in (copy.copy, copy.deepcopy, unpickled):
        with pytest.raises(RuntimeError, match=r"cannot be copied or pickled\n.*\n.*state of its"):
            duplicate(module)
    assert [module([k]).item() for k in (1, 2)] == [1, 3]


def test_the_memory_of_a_result_has_one_owner(mlp: Module) -> None:
    array = mlp._results.memory(1 << 16)
    array[:] = 7
    for array_copy in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        assert not np.shares_memory(array_copy, array)
        assert np.array_equal(array_copy, array)
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.copy(array.base)
