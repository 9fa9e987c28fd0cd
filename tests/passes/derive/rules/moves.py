"""Arguments of rules to try, for random chains of steps and for damaged steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType

from tcc.ir.region import Region, is_leaf
from tcc.ir.region.affine import is_multiple
from tcc.passes.derive.derivation import DerivationStep
from tcc.passes.derive.rules import RULES
from tcc.passes.derive.rules.bounds import tightenings
from tcc.passes.derive.rules.rule import Arguments, long_loops, numeric_loops, stage_of
from tcc.passes.derive.rules.substitute import skews
from tcc.passes.derive.rules.sums import nests, solutions


def splits(region: Region, number: int) -> Iterator[Arguments]:
    """Yields arguments (loop, inner, shift) of `split` for stage `number`.

    `inner` is 2, 3, the coefficient of a loop in an index, or the extent of a loop. `shift` is 0;
    for a result loop, `inner - 1` too.
    """
    stage = stage_of(region, number)
    steps = {s for f in stage.factors for form in f.forms for s in form.steps if isinstance(s, int)}
    factors = sorted({2, 3, *map(abs, steps), *(e for _, e in numeric_loops(stage))})
    for loop, size in long_loops(stage):
        of_sum = loop >= len(stage.iters)
        for inner in factors:
            few = isinstance(size, int) and inner >= size
            if inner > 1 and not few and not (of_sum and not is_multiple(size, inner)):
                yield loop, inner, 0
                if not of_sum:
                    yield loop, inner, inner - 1


def merges(region: Region, number: int) -> Iterator[Arguments]:
    stage = stage_of(region, number)
    return ((a, b) for a, _ in long_loops(stage) for b, _ in numeric_loops(stage) if a != b)


def reversals(region: Region, number: int) -> Iterator[Arguments]:
    return ((k,) for k, _ in long_loops(stage_of(region, number)))


def relaxations(region: Region, number: int) -> Iterator[Arguments]:
    stage = stage_of(region, number)
    for loop, size in numeric_loops(stage):
        if loop >= len(stage.iters):
            yield from ((loop, up) for up in {size + 1, -(-size // 3) * 3} if up > size)


def regroupings(region: Region, number: int) -> Iterator[Arguments]:
    return ((place,) for place in range(len(stage_of(region, number).factors)))


MOVES: MappingProxyType[str, Callable[[Region, int], Iterable[Arguments]]] = MappingProxyType(
    {
        "split": splits,
        "merge": merges,
        "skew": skews,
        "reverse": reversals,
        "nest": nests,
        "solve": solutions,
        "tighten": tightenings,
        "relax": relaxations,
        "regroup": regroupings,
        "inline": regroupings,
    }
)
assert MOVES.keys() == RULES.keys()


def offered_steps(region: Region) -> Iterator[DerivationStep]:
    """Yields every step that any rule offers."""
    for number, stage in enumerate(region.stages):
        if not is_leaf(stage):
            for name, arguments in MOVES.items():
                yield from (DerivationStep(name, number, a) for a in arguments(region, number))
