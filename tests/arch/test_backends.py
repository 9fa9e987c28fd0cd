"""Code above the backends never asks which kind of machine it works for: a backend says it itself.

The scan reports comparisons of a target's kind, uses of its list of GPUs, literals that name a
kind, and tests whether an object's class belongs to one kind of machine.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tcc.target import KINDS

ROOT = Path(__file__).resolve().parents[2]
# Files that define or read kinds, and rooms that belong to one kind of machine.
APART = (
    "compiler/target.py",
    "compiler/options.py",
    "compiler/schedule/cpu",
    "compiler/schedule/gpu",
    "passes/tile/cpu",
    "passes/tile/gpu",
)
NAMES = {*(kind for kind in KINDS if len(kind) > 1), "gpu", "hip"}
OF_A_MACHINE = ("Backend", "Planner", "Kernels", "Profile", "CoreModel", "Machine", "Schedule")
# Findings that may stay: (file, text), and the reason.
ALLOWED = {
    ("compiler/driver.py", "'cpu'"): "the default target of tcc.compile",
    (
        "compiler/driver.py",
        "'gpu'",
    ): "a key of the manifest: the driver its images need",
    (
        "compiler/cli/kernels/listing.py",
        "'cpu'",
    ): "a key of the manifest; what LLVM IR is for",
    ("compiler/cli/ops.py", "'gpu'"): "a column of the support table",
    (
        "compiler/frontends/rounding.py",
        "'gpu'",
    ): "a key of the manifest: all values between these kernels are rounded",
}


def found(tree: ast.AST) -> Iterator[str]:
    """Yields the source text of each expression that asks for a kind of machine."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if text in NAMES:
                yield repr(text)
            case ast.Attribute(attr="gpus"):
                yield ast.unparse(node)
            case ast.Compare():
                yield from (ast.unparse(node) for s in (node.left, *node.comparators) if _kind(s))
            case ast.Match(subject=subject) if _kind(subject):
                yield f"match {ast.unparse(subject)}"
            case ast.MatchClass(cls=named) if _of_a_machine(named):
                yield f"case {ast.unparse(named)}"
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                if any(map(_of_a_machine, ast.walk(classes))):
                    yield ast.unparse(node)


def _kind(node: ast.AST) -> bool:
    """Returns True for the kind of a target, a list of kinds, or a class of one kind of machine."""
    text = ast.unparse(node)
    listed = text in ("KINDS", "GPU_DEFAULTS", "CPU_TRIPLES", "GPUS")
    return listed or text.endswith("target.kind") or _of_a_machine(node)


def _of_a_machine(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else ""
    return name.endswith(OF_A_MACHINE)


def sources() -> list[Path]:
    files = (path for top in ("compiler", "passes") for path in sorted((ROOT / top).rglob("*.py")))
    excluded = [ROOT / name for name in APART]
    return [p for p in files if not any(p == a or a in p.parents for a in excluded)]


def test_nothing_above_the_backends_compares_kinds_of_target() -> None:
    everything = {
        (str(path.relative_to(ROOT)), text)
        for path in sources()
        for text in found(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert len(sources()) > 300
    assert everything - set(ALLOWED) == set()
    assert set(ALLOWED) - everything == set(), "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    "planted",
    [
        'if target.kind == "cuda": pass',
        "if code.target.kind in GPU_DEFAULTS: pass",
        "if target.gpus: pass",
        "wide = 4 if isinstance(bound.schedule, BlockSchedule) else 1",
        "done = isinstance(code, (CpuBackend, Other))",
        "match target.kind:\n    case name: pass",
        "match schedule:\n    case BlockSchedule(): pass",
        "if type(code) is GpuBackend: pass",
        'prices = {"rocm": 2.0}[name]',
    ],
)
def test_comparisons_of_target_kinds_are_found(planted: str) -> None:
    assert list(found(ast.parse(planted)))


def test_kinds_of_dtypes_and_tables_by_kind_pass() -> None:
    fine = 'if dtype.kind is DTypeKind.FLOAT or x.dtype.kind == "f": row = ROWS[target.kind]'
    assert list(found(ast.parse(fine))) == []
