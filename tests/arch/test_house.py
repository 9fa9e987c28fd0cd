"""Files stay readable in size, and folders have a README."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("compiler", "passes", "backends", "runtime", "tests", "models", "scripts")
SUFFIXES = {".py", ".c", ".h", ".S", ""}
MOST_LINES = 600


def source_files() -> list[Path]:
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")))
    return [path for path in files if path.is_file() and path.suffix in SUFFIXES]


def folders_with_sources() -> list[Path]:
    """Returns the root, the top folders, and all folders with modules in the four source
    folders."""
    folders = [ROOT, *(ROOT / name for name in FOLDERS if (ROOT / name).is_dir())]
    for name in FOLDERS[:4]:
        modules = (path for path in (ROOT / name).rglob("*.py") if path.stat().st_size)
        folders += sorted({path.parent for path in modules} - set(folders))
    return folders


def test_files_stay_short() -> None:
    lengths = {path: len(path.read_bytes().splitlines()) for path in source_files()}
    assert len(lengths) > 20
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MOST_LINES} == {}


@pytest.mark.parametrize(
    "folder", folders_with_sources(), ids=lambda path: str(path.relative_to(ROOT))
)
def test_folders_have_a_page(folder: Path) -> None:
    assert (folder / "README.md").is_file(), f"{folder} has no README.md"


@pytest.mark.xdist_group("house")
def test_a_group_is_seen_where_tests_are_spread_over_workers(
    request: pytest.FixtureRequest,
) -> None:
    spread = request.config.getoption("loadgroup", default=False)
    assert request.node.nodeid.endswith("@house") == spread
