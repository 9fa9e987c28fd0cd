"""The mark `fast`: tests that compile no whole model, and the tests without the mark.

`pytest -m fast` runs the marked tests, and reads no file in a place that `SLOW` names. A marked
test that reads or builds a model of models/ fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
# The folders with files of models/, and of the sample models beside the repository.
MODELS = (ROOT / "build" / "models", ROOT.parent / "shared" / "models")
# Folders, files and functions without the mark, and the reason. Paths are below tests/.
SLOW = {
    "arch/test_wheel.py": "pip builds the wheel and installs it in new environments",
    "backends/c": "gcc, clang and qemu run whole C files",
    "backends/gpu": "Triton compiles or interprets kernels",
    "backends/test_conformance.py": "compiles models for each backend",
    "conformance": "compiles models of ONNX's own suite",
    "e2e": "compiles whole models",
    "frontends/onnx/test_models.py": "imports the sample models",
    "frontends/test_random.py": "torch exports and compiles models",
    "frontends/torch": "torch exports and compiles models",
    "frontends/weights/test_compiled.py": "compiles language models",
    "frontends/weights/test_families.py": "transformers computes language models",
    "frontends/weights/test_gguf_models.py": "transformers computes language models",
    "frontends/weights/test_rotary.py": "imports transformers",
    "fuzz": "compiles generated models",
    "lib/emulator": "assembles code for GPUs and runs it in an emulator",
    "models": "builds and runs models of models/",
    "ops/test_arm64.py": "compiles the op matrix, and runs it in qemu",
    "ops/test_compiled.py": "compiles the op matrix",
    "ops/test_unary.py": "compiles functions and runs them on all halves",
    "passes/derive/bilinear/test_convolutions.py": "compiles convolutions and runs them",
    "passes/derive/bilinear/test_tiled_conv.py": "compiles convolutions in every form",
    "passes/tile/cpu/test_op_matrix.py": "evaluates a kernel for each sample of the op matrix",
    "passes/tile/gpu/test_op_matrix.py": "evaluates a kernel for each sample of the op matrix",
    "runtime": "gcc builds the runtime with sanitizers; processes, threads and ranks wait",
    "scripts": "runs scripts, which compile models",
    "test_trials.py": "compiles every candidate of a small model",
    "test_trials_above.py": "compiles every alternative of a small model",
    "cli/test_quantize.py": "calibrates, compiles and times several models for each test",
    "cli/test_verify_classes.py": "runs a reference on draws of several models",
    "cli/test_tune.py::test_a_short_sweep_writes_a_lock_that_a_compile_takes": "measures",
    "cli/test_tune.py::test_a_sweep_leaves_pins_of_unknown_kernels": "measures",
    "cli/test_sizes.py::test_a_speech_model_runs_on_made_up_inputs": "a whole model",
}


def reason(nodeid: str) -> str:
    """Returns why a folder, file or test has no mark, or "" if it has the mark.

    `nodeid` is pytest's name below tests/, without parameters.
    """
    path, _, function = nodeid.partition("::")
    parts = path.split("/")
    places = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return next(filter(None, (SLOW.get(p, "") for p in (*places, f"{path}::{function}"))), "")


def name_below_tests(item: pytest.Item) -> str:
    """Returns the test's path and function below tests/, without parameters and group."""
    function = getattr(item, "originalname", None) or item.name
    return f"{item.path.relative_to(TESTS).as_posix()}::{function}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips folders and files without fast tests if pytest runs fast tests only."""
    if config.getoption("markexpr") != "fast" or not collection_path.is_relative_to(TESTS):
        return None
    return bool(reason(collection_path.relative_to(TESTS).as_posix())) or None


def is_fast(item: pytest.Item) -> bool:
    """Returns whether the test has the mark `fast`."""
    return not reason(name_below_tests(item))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_fast(item):
            item.add_marker(pytest.mark.fast)


class ModelUses:
    """Records the models of models/ that are read or built while `watched` is active."""

    def __init__(self) -> None:
        self.names: list[str] | None = None

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Yields the list to which uses are added until the context ends."""
        builds = sys.modules.get("models.build")
        if builds is not None and not hasattr(builds.recipe, "__wrapped__"):
            # models.build may be loaded or not, so it is looked up and not imported
            builds.recipe = self._noted(builds.recipe)  # type: ignore[attr-defined]
        self.names = names = []
        try:
            yield names
        finally:
            self.names = None

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Records files of models that Python opens; `sys.addaudithook` calls this method."""
        if event == "open" and self.names is not None and isinstance(arguments[0], str | Path):
            path = os.path.abspath(arguments[0])
            if path.endswith(".onnx") and any(map(Path(path).is_relative_to, MODELS)):
                self.names.append(path)

    def _noted(self, recipe: Callable[..., object]) -> Callable[..., object]:
        @wraps(recipe)
        def noted(spec: Any) -> object:
            if self.names is not None:
                self.names.append(spec.name)
            return recipe(spec)

        return noted


USES = ModelUses()
sys.addaudithook(USES.audit)


@contextmanager
def no_whole_model(item: pytest.Item) -> Iterator[None]:
    """Fails a test with the mark `fast` that used a model of models/."""
    with USES.watched() as names:
        yield
    if names and item.get_closest_marker("fast"):
        pytest.fail(
            f"{item.nodeid} has the mark `fast` and uses the whole model {names[0]}; "
            "to do: add it to SLOW in tests/fast.py with a reason",
            pytrace=False,
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with no_whole_model(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with no_whole_model(item):
        return (yield)
