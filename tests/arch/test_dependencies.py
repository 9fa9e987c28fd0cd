"""Packages that pyproject.toml declares are used, and used packages are declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from .syntax import statements

pytestmark = pytest.mark.xdist_group("dependencies")  # one worker reads all files, once
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ("compiler", "passes", "backends", "runtime")
REST = ("tests", "scripts", "models")

# Packages whose modules have other names than the package.
MODULES = {
    "apache-tvm-ffi": "tvm_ffi",
    "mkdocs-material": "mkdocs",
    "ml-dtypes": "ml_dtypes",
    "pillow": "PIL",
    "protobuf": "google",
    "pyyaml": "yaml",
    "scikit-image": "skimage",
    "z3-solver": "z3",
}
# Packages that code runs or other packages need, but that nothing imports: the file and text that
# show the need.
RUN = {
    "build": ("tests/arch/test_wheel.py", '"-m", "build"'),
    "expecttest": ("scripts/frameworks/opinfo_worker.py", "torch.testing._internal"),
    "import-linter": ("scripts/test", '"lint-imports"'),
    "mypy": ("scripts/test", '("mypy",)'),
    "onnxscript": ("models/export.py", "dynamo=True"),
    "pytest-random-order": ("scripts/random_orders", '"--random-order-seed'),
    "pytest-xdist": ("scripts/test", '"--dist"'),
    "ruff": ("scripts/test", '"ruff"'),
}
# Modules that code imports and no extra declares, and the reason.
ON_REQUEST = {
    "atheris": "a fuzzer that scripts/fuzz_targets runs where it is installed",
    "iree": "a peer that tcc bench runs where it is installed",
    "jax": "a source of models where it is installed",
    "llama_cpp": "scripts/language installs it in an environment of its own",
    "onnxruntime_genai": "scripts/language installs it in an environment of its own",
    "openvino_genai": "scripts/language installs it in an environment of its own",
    "tvm": "a peer that tcc bench runs, and a caller of artifacts, where it is installed",
}
# Functions that look up a module by name.
LOOKING = ("importorskip", "find_spec", "import_module")


def names(requirements: Iterable[str]) -> set[str]:
    return {re.match(r"[\w.-]+", text)[0].lower() for text in requirements}  # type: ignore[index]


def modules(packages: Iterable[str]) -> set[str]:
    return {MODULES.get(name, name) for name in packages}


CORE = names(PROJECT["dependencies"])
EXTRAS = {extra: names(listed) for extra, listed in PROJECT["optional-dependencies"].items()}


def python_files(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        files = (path for path in sorted((ROOT / folder).rglob("*")) if path.is_file())
        yield from (path for path in files if path.suffix == ".py" or is_script(path))


def is_script(path: Path) -> bool:
    return not path.suffix and path.read_bytes().startswith(b"#!/usr/bin/env python3")


@cache
def folder_imports(folder: str) -> tuple[set[str], set[str]]:
    """Returns two sets for a folder: names of its own modules and folders, and the top-level
    modules that its files import.

    Outside the source folders, files may import their own modules by bare names. A test folder that
    has the name of a package, like `torch`, does not count as that package.
    """
    packages = modules(set().union(*EXTRAS.values()))
    local_names, imports = set[str](), set[str]()
    for path in python_files([folder]):
        local_names |= set() if folder in SOURCES else {path.stem, path.parent.name} - packages
        text = path.read_text(encoding="utf-8")
        looks = any(f"{function}(" in text for function in LOOKING)
        for node in (ast.walk if looks else statements)(ast.parse(text)):
            imports |= {name.partition(".")[0] for name in named(node)}
    return local_names, imports


def imported(folders: tuple[str, ...]) -> set[str]:
    """Returns the top-level modules that files import, except Python's and the repository's own."""
    names, imports = zip(*map(folder_imports, folders), strict=True)
    return set().union(*imports).difference(*names, {"tcc", *REST}, sys.stdlib_module_names)


def named(node: ast.AST) -> list[str]:
    """Returns the modules that a syntax tree node imports, or looks up by a literal name."""
    match node:
        case ast.Import(names=aliases):
            return [alias.name for alias in aliases]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
        case ast.Call(func=ast.Attribute(attr=function), args=[ast.Constant(value=str(text)), *_]):
            return [text] if function in LOOKING else []
        case _:
            return []


def test_every_import_of_tcc_is_declared() -> None:
    build = {"setuptools"}  # by the commands of the wheel alone
    names = ("zig", "io", "profile", "quantize", "ray", "gpu", "models", "bench")
    extras = modules(set().union(*(EXTRAS[name] for name in names)))
    undeclared = imported(SOURCES) - modules(CORE) - extras - build
    assert undeclared == {"iree", "tvm"} < ON_REQUEST.keys()


def test_the_core_install_is_used() -> None:
    assert modules(CORE) - imported(SOURCES) == set()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_used(extra: str) -> None:
    modules_imported = imported((*SOURCES, *REST))
    for package in EXTRAS[extra] - RUN.keys():
        assert modules([package]) <= modules_imported, f"nothing imports {package}"


@pytest.mark.parametrize("package", RUN)
def test_declared_packages_without_import_are_run_as_commands(package: str) -> None:
    file, text = RUN[package]
    assert package in set().union(*EXTRAS.values()), "it is not declared"
    assert text in (ROOT / file).read_text(encoding="utf-8")
    assert not modules([package]) & imported((*SOURCES, *REST)), "it is imported"


def test_every_import_of_tests_and_scripts_is_declared() -> None:
    declared = modules(CORE.union(*EXTRAS.values()))
    assert imported((*SOURCES, *REST)) - declared == set(ON_REQUEST)
