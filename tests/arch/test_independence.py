"""Tests are independent of their order and of the process that starts them: each test draws its own
numbers, float comparisons have an absolute tolerance, child programs get default signals, and no
library hides a module of Python."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
GENERATORS = {"default_rng", "RandomState", "Random", "SystemRandom", "Generator"}
SENDING = {"send_signal", "terminate", "raise_signal", "alarm"}
# A path, or the last word of a command.
LIBRARY = re.compile(r"""(?:[^'"\n]*[\s/])?(?P<stem>\w+)\.so""")
COMPARISONS = {"assert_allclose", "allclose", "isclose"}


def shared_generators(tree: ast.Module) -> Iterator[str]:
    """Yields the random generators that a module creates at import: tests would share them."""
    for node in _run_at_import(tree):
        if isinstance(node, ast.Call) and _called(node) in GENERATORS:
            yield ast.unparse(node)


def unseeded_generators(tree: ast.Module) -> Iterator[str]:
    """Yields the random generators that start from the machine's entropy, except torch's, which
    start from a fixed number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in GENERATORS and not node.args:
            yield from {ast.unparse(node)} - {"torch.Generator()"}


def relative_comparisons(tree: ast.Module) -> Iterator[str]:
    """Yields the comparisons of arrays without an absolute tolerance.

    `pytest.approx` has a default absolute tolerance of 1e-12. Operators under test
    (`torch.isclose`) do not count as comparisons.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) in COMPARISONS:
            text = ast.unparse(node)
            if not text.startswith("torch.isclose") and not _is_absolute(node):
                yield text


def signals_that_may_be_ignored(tree: ast.Module) -> Iterator[str]:
    """Yields calls that send signals to programs which tests/processes.py did not start.

    Programs started in another way inherit the signals that the parent of the tests ignores. A
    module that sets a signal to SIG_DFL itself yields nothing.
    """
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    helper = any(isinstance(n, ast.FunctionDef) and n.name == "ignored_signals" for n in tree.body)
    resets = any(isinstance(n, ast.Attribute) and n.attr == "SIG_DFL" for n in ast.walk(tree))
    if not helper and not resets and not modules & {"tests.processes", "processes"}:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _called(node) in SENDING:
                yield ast.unparse(node)


def libraries_named_like_modules(tree: ast.Module) -> Iterator[str]:
    """Yields the names of shared libraries that Python would import as modules of its own.

    `python -m` looks for modules in the current folder first, so json.so hides json there.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            path = LIBRARY.fullmatch(node.value)
            if path and path["stem"] in sys.stdlib_module_names:
                yield path[0]


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that Python evaluates when it imports a module: decorators and defaults of
    functions, but not their bodies."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef(args=arguments, decorator_list=decorators):
                parts = [*decorators, *arguments.defaults, *filter(None, arguments.kw_defaults)]
            case ast.Lambda(args=arguments):
                parts = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
            case _:
                yield child
                parts = [child]
        for part in parts:
            if part is not child:
                yield part
            yield from _run_at_import(part)


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_absolute(call: ast.Call) -> bool:
    """Returns True if the call has an absolute tolerance other than the literal zero."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if len(call.args) > 3:
        keywords["atol"] = call.args[3]
    tolerance = keywords.get("atol")
    return tolerance is not None and not (
        isinstance(tolerance, ast.Constant) and tolerance.value == 0
    )


RULES = (
    shared_generators, unseeded_generators, relative_comparisons, signals_that_may_be_ignored,
    libraries_named_like_modules,
)  # fmt: skip


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    paths = sorted(TESTS.rglob("*.py"))
    return {str(p.relative_to(TESTS)): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_test_breaks_the_rule(rule: object, modules: dict[str, ast.Module]) -> None:
    assert callable(rule)
    assert len(modules) > 400
    assert [f"{name}: {text}" for name, tree in modules.items() for text in rule(tree)] == []


@pytest.mark.parametrize(
    ("rule", "planted", "count"),
    [
        (shared_generators, "RNG = np.random.default_rng(3)", 1),
        (shared_generators, "class Case:\n    rng: Random = random.Random(1)", 1),
        (shared_generators, "X = np.random.default_rng(2).standard_normal(4)", 1),
        (shared_generators, "def f(x, *, rng=default_rng(0)): pass", 1),
        (shared_generators, "f = lambda rng=torch.Generator(): rng", 1),
        (shared_generators, "def f():\n    rng = default_rng(0)\ng = lambda: default_rng(1)", 0),
        (unseeded_generators, "def f():\n    return np.random.default_rng()", 1),
        (signals_that_may_be_ignored, "process.send_signal(signal.SIGINT)", 1),
        (signals_that_may_be_ignored, "from tests.processes import started\np.terminate()", 0),
        (signals_that_may_be_ignored, "signal.signal(14, signal.SIG_DFL)\nsignal.alarm(9)", 0),
        (signals_that_may_be_ignored, "signal.alarm(9)", 1),
        (libraries_named_like_modules, "module.save(folder / 'json.so')", 1),
        (libraries_named_like_modules, "f'{folder}/copy.so'", 1),
        (libraries_named_like_modules, "'model.so'; 'my-json.so'; 'json.so.1'", 0),
        (relative_comparisons, "np.testing.assert_allclose(a, b, rtol=1e-5)", 1),
        (relative_comparisons, "assert np.allclose(a, b, rtol=1e-5, atol=0)", 1),
        (relative_comparisons, "assert_allclose(a, b)", 1),
        (relative_comparisons, "assert_allclose(a, b, atol=1e-6 * np.abs(b).sum())", 0),
        (relative_comparisons, "assert_allclose(a, b, 0, bound)", 0),
    ],
)
def test_a_planted_case_is_found(rule: object, planted: str, count: int) -> None:
    assert callable(rule)
    assert len(list(rule(ast.parse(planted)))) == count
