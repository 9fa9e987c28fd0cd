"""Prices are compared in one place, and rooms of passes do not import each other."""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

from tests.arch.price_readers import comparisons, price_readers

ROOT = Path(__file__).resolve().parents[2]
# Price comparisons that do not choose between alternatives of a program, by file. The numbers may
# only fall.
OTHERS = {
    "backends/cpu/backend.py": 1,  # the longest tile, for the end of a loop
    "backends/cpu/calibrate.py": 2,  # measured times
    "backends/cpu/llvm/body.py": 1,  # registers
    "backends/cpu/llvm/emit.py": 1,  # registers
    "backends/gpu/tuning.py": 3,  # spills and registers
    "backends/workers.py": 1,  # time limits
    # The rule that proposes a schedule compares cycles: the instructions on one core, without
    # traffic. The decision `schedule` prices panels of other widths. The second comparison is bytes
    # per cycle.
    "compiler/schedule/cpu/contraction.py": 2,
    # Cycles again, for rows of a strip, among the numbers that fit the second-level cache.
    "compiler/schedule/cpu/sliding_window.py": 1,
    "compiler/schedule/gpu/cost.py": 1,  # makes a price
    "passes/tile/cpu/explain.py": 1,  # the share of imbalance in a price
    "passes/tile/gpu/split_k.py": 1,  # the number of tiles
}
# The number of pairs of rooms of passes that import each other.
MOST_PAIRS = 2


def test_only_the_choosers_compare_prices() -> None:
    assert dict(price_readers(ROOT)) == OTHERS


def test_comparisons_are_found_by_their_names() -> None:
    text = "if a.seconds < best: pass\nmin(x, key=lambda p: p.price)\nif a == price: pass\n"
    text += "x.sort(key=lambda p: p.plan.seconds)\nn < 3\ncycles < fewest\n"
    assert list(comparisons(text)) == [1, 2, 4, 6]


def imports_of_rooms() -> set[tuple[str, str]]:
    """Returns the pairs of rooms of `passes` in which the first imports the second."""
    pairs = set()
    for path in (ROOT / "passes").rglob("*.py"):
        room = path.relative_to(ROOT / "passes").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tcc.passes."):
                other = (node.module or "").split(".")[2]
                pairs.add((room, other))
    return pairs


def test_few_rooms_of_passes_import_each_other() -> None:
    pairs = imports_of_rooms()
    rooms = sorted({room for room, _ in pairs})
    mutual = [(a, b) for a, b in combinations(rooms, 2) if {(a, b), (b, a)} <= pairs]
    assert len(mutual) <= MOST_PAIRS, mutual
