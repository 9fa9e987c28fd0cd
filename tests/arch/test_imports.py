"""Imports respect the layers and stay cheap."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .syntax import statements

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("compiler", "passes", "backends", "runtime")
MODULES = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]


def run_python(code: str, *flags: str) -> str:
    process = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env={"PYTHONPATH": str(ROOT / "build" / "devtree")},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_layers_hold() -> None:
    cache = ROOT / "build" / "import_linter_cache"
    out = run_python(
        "import sys; from importlinter.cli import lint_imports;"
        f"sys.exit(lint_imports(cache_dir={str(cache)!r}))"
    )
    assert "0 broken" in out


def faults(path: Path) -> Iterator[str]:
    """Yields imports inside functions, relative imports, and imports that name a source folder."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (n for n in statements(node) if isinstance(n, ast.Import | ast.ImportFrom))
            yield from (f"{path}:{n.lineno} is in a function" for n in inner)
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level and path.parent != ROOT / "runtime":
                yield f"{path}:{node.lineno} is relative"
            names = [] if node.level else [node.module or ""]
        if {name.partition(".")[0] for name in names} & set(SOURCES):
            yield f"{path} names {names}"


def test_imports_stand_at_the_top_and_name_tcc() -> None:
    assert [fault for path in MODULES for fault in faults(path)] == []


def test_importing_tcc_is_quick_and_loads_no_other_library() -> None:
    """The test counts processor time, so that a busy machine does not fail it."""
    code = """
import sys, time
before = set(sys.modules)
started = time.process_time()
import tcc
seconds = time.process_time() - started
new = {name.partition(".")[0] for name in set(sys.modules) - before}
foreign = sorted(new - set(sys.stdlib_module_names) - {"tcc"})
print(seconds, *foreign)
"""
    runs = [run_python(code).split() for _ in range(3)]
    assert min(float(run[0]) for run in runs) < 0.050
    assert [run[1:] for run in runs] == [[], [], []]


def test_public_names_resolve() -> None:
    code = "import tcc; print(*(n for n in tcc.__all__ if getattr(tcc, n) is None), sep='')"
    assert run_python(code) == "\n"
    out = run_python("import tcc\ntry: tcc.nothing\nexcept AttributeError as e: print(e)")
    assert "nothing" in out


def test_running_as_a_module_works() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tcc", "--version"],
        env={"PYTHONPATH": str(ROOT / "build" / "devtree")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.startswith("tcc, version ")
