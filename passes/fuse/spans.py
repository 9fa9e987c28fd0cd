"""Spans: the part of each loop that a block covers, and what indices become on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tcc.ir.group import Access
from tcc.ir.index import Index, Var, substitute
from tcc.ir.tile import Guard, lanes


@dataclass(frozen=True, slots=True)
class Span:
    """The part of an iterator a block covers: `base + lane` for `lane < size`.

    `axis` tells whether blocks have an axis for it (of `size`, maybe 1).
    """

    var: Var
    base: Index
    size: int
    axis: bool


Spans: TypeAlias = dict[Var, Span]


def flat(span: Span) -> Span:
    """A span that a block does not vary along has no axis in it."""
    return Span(span.var, span.base, 1, False)


def positions(spans: Sequence[Span], shape: tuple[int, ...]) -> dict[Var, Index]:
    """Each iterator as an expression over loop and lane variables of a block of `shape`."""
    lane = iter(lanes(shape))
    mapping: dict[Var, Index] = {}
    for span in spans:
        if not span.axis:
            mapping[span.var] = span.base
            continue
        own = next(lane)
        mapping[span.var] = span.base + own
    return mapping


def guards_at(access: Access, mapping: Mapping[Var, Index]) -> tuple[Guard, ...]:
    return tuple(
        Guard(substitute(g.index, mapping), substitute(g.extent, mapping)) for g in access.guards
    )
