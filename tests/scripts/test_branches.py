"""`scripts/branches` lists the branches of one file of the runtime, and those that a program
takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "runtime" / "src"
# A program that takes some branches of `sized.c`, and the rest with an argument.
PROGRAM = """
#include "sized.h"
#include <unistd.h>

int main(int argc, char **argv) {
    static const tcc_sized kind = {"pair", 8, 4, 1 << 1};
    const uint32_t whole[2] = {8, 5}, older[2] = {4, 0}, newer[3] = {12, 5, argc > 1};
    uint32_t read[2] = {0, 0};
    (void)argv;
    if (tcc_sized_read(&kind, whole, read) || tcc_sized_read(&kind, older, read)) return 1;
    if (argc > 1 && !tcc_sized_read(&kind, newer, read)) return 2;
    _exit(0);
}
"""


@contextmanager
def _folder_of_scripts() -> Iterator[None]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def branches() -> ModuleType:
    loader = SourceFileLoader("branches", str(ROOT / "scripts" / "branches"))
    spec = spec_from_loader("branches", loader)
    assert spec is not None
    module = module_from_spec(spec)
    with _folder_of_scripts():
        loader.exec_module(module)
    return module


def test_branches_that_programs_take_add_up(branches: ModuleType, tmp_path: Path) -> None:
    variables = branches.make_compiler(tmp_path)
    (tmp_path / "main.c").write_text(PROGRAM)
    files = [str(SOURCES / name) for name in ("sized.c", "status.c")]
    includes = (f"-I{SOURCES}", f"-I{ROOT / 'runtime' / 'include'}")
    command = ("cc", "-O2", *includes, "main.c", *files, "-o", "main")
    subprocess.run(command, cwd=tmp_path, env=variables, check=True)
    ratios = []
    for words in (None, (), ("newer",)):
        if words is not None:  # it ends by _exit, like forked children
            subprocess.run((tmp_path / "main", *words), check=True)
        counts = branches.all_counts(tmp_path)
        assert sorted(map(str, counts)) == ["sized.c", "status.c"]
        ratios.append(branches._ratio(counts[Path("sized.c")]))
    assert len({all_of_them for _, all_of_them in ratios}) == 1
    assert 0 == ratios[0][0] < ratios[1][0] < ratios[2][0] < ratios[2][1]
    (line,) = (row for row in branches.never(counts) if row.startswith("sized.c: "))
    text = (SOURCES / "sized.c").read_text().splitlines()
    assert any("NULL" in text[int(n) - 1] or "theirs" in text[int(n) - 1] for n in line.split()[1:])
    (row,) = (row for row in branches.table(counts) if row.startswith("sized.c"))
    assert row.split()[1:4] == [str(ratios[2][0]), "of", str(ratios[2][1])]


def test_every_deselected_test_exists(branches: ModuleType) -> None:
    for test in branches.DESELECTED:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text()


def test_a_line_that_definitions_change_has_the_branches_of_one_of_them(
    branches: ModuleType,
) -> None:
    plain, failing = {3: [5, 0], 9: [1, 1]}, {3: [2, 2, 1, 1], 9: [0, 4]}
    assert branches.merged([plain, failing]) == {3: [2, 2, 1, 1], 9: [1, 5]}
    assert branches.merged([plain, {3: [0, 0, 0, 1]}]) == {3: [5, 0], 9: [1, 1]}
