"""The package map in pyproject.toml is complete: a folder left out is missing in the wheel."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
FOLDERS = {name: ROOT / folder for name, folder in SETUP["package-dir"].items()}


def packages_on_disk() -> set[str]:
    packages = set()
    for name, folder in FOLDERS.items():
        for module in folder.rglob("*.py"):
            parts = module.parent.relative_to(folder).parts
            packages.add(".".join((name, *parts)))
    return packages


def test_every_folder_with_modules_is_a_listed_package() -> None:
    assert packages_on_disk() == set(SETUP["packages"])


@pytest.mark.parametrize("package", SETUP["packages"])
def test_every_package_has_an_init(package: str) -> None:
    name = max((name for name in FOLDERS if f"{package}.".startswith(f"{name}.")), key=len)
    parts = package.removeprefix(name).strip(".").split(".")
    assert (FOLDERS[name].joinpath(*filter(None, parts)) / "__init__.py").is_file()


def test_nothing_in_compiler_hides_a_mapped_package_or_a_public_function() -> None:
    names = {path.stem for path in (ROOT / "compiler").iterdir()}
    assert not names & {"passes", "backends", "runtime", "compile", "load"}


def test_only_the_known_folders_are_at_the_top() -> None:
    known_folders = {
        "compiler",
        "passes",
        "backends",
        "runtime",
        "tests",
        "models",
        "scripts",
        "build",
    }
    known_folders |= {"dist", "tcc.egg-info"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert {name for name in folders if not name.startswith(".")} <= known_folders
