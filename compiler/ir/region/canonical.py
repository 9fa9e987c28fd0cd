"""Fingerprints of regions.

Two regions have the same fingerprint if they differ only in names, in the order of sum loops, of
factors or of stages, or by stages that nothing reads or that occur twice.

The code of a stage is a tuple that describes the stage completely.  The hash of its code identifies
a stage, and the code of a stage contains the hashes of the stages that it reads.  Codes of stages
are cached, so only new stages of a region cost time.

The canonical order of a stage's sum loops follows from the accesses in which the loops occur.
Loops get colours, which are refined by these accesses, as the colours of vertices are refined by
edges (Weisfeiler and Leman 1968).  Among loops of equal colour, all orders are tried, and the order
with the smallest code is taken.  If there would be more than `_MOST_ORDERS` orders, the loops keep
their order.  In this case equal regions may have different codes, but different regions never have
equal codes.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, pairwise, permutations, product
from math import factorial, prod
from typing import Any, NamedTuple, TypeAlias

from tcc.ir import expr
from tcc.ir.expr.scalar import (
    Arg,
    Const,
    IndexValue,
    Read,
    Scalars,
    children,
    walk,
)
from tcc.ir.region import Factor, Region, RegionStage, constant_of
from tcc.ir.region.affine import Affine, Size, Sizes
from tcc.ir.types import TensorType
from tcc.zipped import zip_equal

_Code: TypeAlias = tuple[Any, ...]
_MOST_ORDERS = 120


def fingerprint(region: Region) -> bytes:
    """Returns a hash of 128 bits, which is equal for equal regions."""
    digests = stage_digests(region)
    outputs = tuple((digests[n], component) for n, component in region.outputs)
    return _hash((_param_codes(region.params), outputs))


def stage_digests(region: Region) -> list[bytes]:
    """Returns for each stage a hash of 128 bits of its meaning as a function of the parameters."""
    digests: list[bytes] = []
    for stage in region.stages:
        names = tuple(
            b"" if f.source is None
            else b"%d" % f.source if f.source >= 0
            else digests[~f.source]
            for f in stage.factors
        )  # fmt: skip
        digests.append(_digest(stage, names))
    return digests


def _hash(code: _Code) -> bytes:
    # Version 2 of marshal writes equal values as equal bytes.  Later versions write references to
    # objects, so their bytes depend on which values are one object.
    return blake2b(marshal.dumps(code, 2), digest_size=16).digest()


@lru_cache(1 << 14)
def _digest(stage: RegionStage, names: tuple[bytes, ...]) -> bytes:
    first = len(stage.iters)
    if isinstance(stage.body, expr.Stage):
        sources = tuple((name, f.component) for name, f in zip_equal(names, stage.factors))
        return _hash((_sizes(stage.loops), first, stage.monoid, sources, _text(stage.body.body)))
    columns = [_columns(f, n, stage.loops) for f, n in zip_equal(stage.factors, names)]
    constant = constant_of(stage)
    codes: list[_Code] = []
    for sums in _orders(stage, columns):
        factors = [c.code((*range(first), *sums)) for c in columns]
        if constant is None:
            factors = [factors[n] for n in _factor_order(stage.body)]
        else:
            factors.sort()
        codes.append((tuple(factors), _sizes(stage.loops[k] for k in sums)))
    text = _text(stage.body) if constant is None else (repr(constant), stage.body[0].dtype.name)
    return _hash((min(codes), _sizes(stage.iters), stage.monoid, text))


# ---- codes --------------------------------------------------------------------------------------


def _size(size: Size) -> int:
    """Returns `size` itself if it is an int, else a hash of it that is larger than any int size."""
    return size if isinstance(size, int) else _symbol(size.key)


@lru_cache(4096)
def _symbol(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "big") + (1 << 128)


def _sizes(sizes: Iterable[Size]) -> tuple[int, ...]:
    return tuple(s if type(s) is int else _size(s) for s in sizes)


@lru_cache(256)
def _param_codes(params: tuple[TensorType | None, ...]) -> _Code:
    return tuple(() if p is None else (p.dtype.name, _sizes(p.shape)) for p in params)


@lru_cache(4096)
def _text(body: Scalars) -> tuple[str, ...]:
    """Returns a line of text for each scalar of a body.

    Lines refer to operands by line numbers, and to factors by their position in the order of use.
    """
    factors = _factor_order(body)
    place: dict[object, int] = {}
    lines: list[str] = []
    for node in walk(*body):
        match node:
            case Const():
                detail = repr(node.value)
            case Arg():
                detail = str(factors.index(node.number))
            case IndexValue():
                detail = node.index.key
            case Read():
                bound = [v.key for v, _ in node.indirect]
                detail = f"{node.source} {[i.key for i in node.indices]} {bound} {node.fill!r}"
            case _:
                detail = getattr(node, "function", "")
        operands = [place[c] for c in children(node)]
        place[node] = len(lines)
        lines.append(f"{type(node).__name__} {node.dtype.name} {detail} {operands}")
    return (*lines, str([place[b] for b in body]))


@lru_cache(4096)
def _factor_order(body: Scalars) -> tuple[int, ...]:
    """Returns the factors, by number, in order of use."""
    return tuple(dict.fromkeys(n.number for n in walk(*body) if isinstance(n, Arg)))


class _Columns(NamedTuple):
    """The parts of an access from which its code is made for any order of the loops.

    `fixed` encodes the parts that depend on no loop. `loops[k]` is the column of loop k: its
    coefficient in each form of the access. If a form has digits, a column also describes where the
    loop occurs in the digits, but not completely. In this case `forms` has all forms of the access;
    otherwise it is empty.
    """

    fixed: _Code
    loops: tuple[_Code, ...]
    forms: tuple[Affine, ...]

    def code(self, order: Sequence[int]) -> _Code:
        """Returns the code of the access if its loops are in the order `order`."""
        columns = tuple(self.loops[k] for k in order)
        return self.fixed, columns, tuple(_digits(f, order) for f in self.forms)


def _columns(factor: Factor, name: bytes, extents: Sizes) -> _Columns:
    forms = factor.forms
    fixed = (
        name,
        factor.component,
        factor.dtype.name,
        "" if factor.fill is None else repr(factor.fill.value),
        _sizes(f.offset for f in forms),
    )
    loops = tuple(map(_sizes, zip_equal(*(f.steps for f in forms)))) or ((),) * len(extents)
    digits = forms if any(f.digits for f in forms) else ()
    if digits:
        loops = tuple(
            (*column, *chain.from_iterable(_column(f, k) for f in forms))
            for k, column in enumerate(loops)
        )
    return _Columns(fixed, loops, digits)


def _column(form: Affine, loop: int) -> _Code:
    """Returns a code that describes where a loop occurs in the digits of a form.

    The code does not depend on the order of loops and digits.
    """
    return (
        len(form.digits),
        *sorted(
            (_size(d.step), d.div, d.mod, _size(d.of.steps[loop]), _column(d.of, loop))
            for d in form.digits
        ),
    )


def _digits(form: Affine, order: Sequence[int]) -> _Code:
    return tuple(
        sorted(
            (
                _size(d.step), d.div, d.mod, _size(d.of.offset),
                _sizes(d.of.steps[k] for k in order), _digits(d.of, order),
            )
            for d in form.digits
        )
    )  # fmt: skip


# ---- the order of sum loops ---------------------------------------------------------------------


def _orders(stage: RegionStage, columns: Sequence[_Columns]) -> list[tuple[int, ...]]:
    """Returns candidate orders of the sum loops.

    The caller keeps the order in which the stage has the smallest code (see above: the tuple that
    describes the stage). Usually there is one candidate. `columns` describes the stage's accesses.
    """
    first = len(stage.iters)
    numbers = range(first, first + len(stage.sums))
    if len(numbers) < 2:
        return [tuple(numbers)]
    marks = _ranked([c.fixed for c in columns])
    occurrences = [(_size(stage.loops[k]), _occurrences(marks, columns, k)) for k in numbers]
    colours, count = _ranked(occurrences), 0
    while count < max(colours) + 1 < len(numbers):
        count = max(colours) + 1
        coloured = list(zip_equal(colours, numbers))
        colour_columns = [sorted((colour, c.loops[k]) for colour, k in coloured) for c in columns]
        marks = _ranked(
            [(m, c.loops[:first], s) for m, c, s in zip_equal(marks, columns, colour_columns)]
        )
        colours = _ranked([(colour, _occurrences(marks, columns, k)) for colour, k in coloured])
    classes: list[list[int]] = [[] for _ in range(max(colours) + 1)]
    for colour, k in zip_equal(colours, numbers):
        classes[colour].append(k)
    if prod(factorial(len(c)) for c in classes) > _MOST_ORDERS:
        return [tuple(chain.from_iterable(classes))]
    return [tuple(chain.from_iterable(parts)) for parts in product(*map(permutations, classes))]


def _occurrences(
    marks: Sequence[int], columns: Sequence[_Columns], loop: int
) -> list[tuple[int, _Code]]:
    """Returns the pairs (mark, column of `loop`) of all accesses, sorted.

    `marks` has a number for each access, which is equal for accesses not yet told apart.
    """
    return sorted((mark, c.loops[loop]) for mark, c in zip_equal(marks, columns))


def _ranked(keys: Sequence[Any]) -> list[int]:
    """Returns the position of each key among the sorted distinct keys."""
    places = [0] * len(keys)
    for last, n in pairwise(sorted(range(len(keys)), key=keys.__getitem__)):
        places[n] = places[last] + (keys[n] != keys[last])
    return places
