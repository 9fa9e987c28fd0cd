"""Canonical forms and fingerprints: regions that differ in names, in the order of sum loops, of
factors or of stages, or by stages that nothing reads or that are there twice, are one state.

The order of a stage's sum loops follows from where they occur.  Colours of loops are refined by the
accesses in which they stand, as vertices are by their edges (Weisfeiler and Leman 1968); the order
of what stays alike is that of the least code among all orders, or the given one where there are
more than `_MOST_ORDERS`: then a state may have several codes, and none has another state's.
A stage is named by the hash of its code, in which its sources stand by theirs, so a region costs as
many codes as it has new stages.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, permutations, product
from math import factorial, prod
from typing import Any, NamedTuple, TypeAlias

from tcc.ir import expr
from tcc.ir.expr.scalar import (
    Arg,
    Const,
    IndexValue,
    Read,
    Scalars,
    argument,
    children,
    transform_all,
    walk,
)
from tcc.ir.types import TensorType
from tcc.passes.derive.affine import Affine, Size
from tcc.passes.derive.edit import chosen
from tcc.passes.derive.record import Factor, Region, Stage, constant_of
from tcc.passes.derive.record import product as product_body

_Code: TypeAlias = tuple[Any, ...]
_MOST_ORDERS = 120


class _Form(NamedTuple):
    """A stage in canonical order, the old numbers of its factors, and the hash of its code."""

    stage: Stage
    order: tuple[int, ...]
    digest: bytes


def fingerprint(region: Region) -> bytes:
    """128 bits, equal for regions of equal canonical form."""
    digests = [form.digest for form in _forms(region)]
    outputs = tuple((digests[n], component) for n, component in region.outputs)
    return _hash((_param_codes(region.params), outputs))


def canonical(region: Region) -> Region:
    """The region that stands for all that compute the same in another order."""
    forms = _forms(region)
    place: dict[bytes, int] = {}
    stages: list[Stage] = []

    def visit(number: int) -> int:
        form = forms[number]
        if form.digest not in place:
            factors = [
                f if f.source is None or f.source >= 0 else f._replace(source=~visit(~f.source))
                for f in form.stage.factors
            ]
            place[form.digest] = len(stages)
            stages.append(form.stage._replace(factors=tuple(factors)))
        return place[form.digest]

    outputs = tuple((visit(number), component) for number, component in region.outputs)
    return Region(region.params, tuple(stages), outputs)


def _hash(code: _Code) -> bytes:
    # Version 2 writes equal values as equal bytes: later ones write references to equal objects.
    return blake2b(marshal.dumps(code, 2), digest_size=16).digest()


def _forms(region: Region) -> list[_Form]:
    forms: list[_Form] = []
    for stage in region.stages:
        names = tuple(
            b"" if f.source is None
            else b"%d" % f.source if f.source >= 0
            else forms[~f.source].digest
            for f in stage.factors
        )  # fmt: skip
        forms.append(_form(stage, names))
    return forms


@lru_cache(maxsize=1 << 14)
def _form(stage: Stage, names: tuple[bytes, ...]) -> _Form:
    if isinstance(stage.body, expr.Stage):
        read = tuple((name, f.component) for name, f in zip(names, stage.factors, strict=True))
        body = stage.body
        loops = tuple(map(_sizes, (stage.iters, stage.sums)))
        return _Form(
            stage, tuple(range(len(names))), _hash((loops, stage.monoid, read, _text(body.body)))
        )
    columns = [
        _columns(f, name, len(stage.loops)) for f, name in zip(stage.factors, names, strict=True)
    ]
    commutes = constant_of(stage) is not None
    best: tuple[_Code, tuple[int, ...], tuple[int, ...]] | None = None
    for sums in _orders(stage, columns):
        codes = [c.code((*range(len(stage.iters)), *sums)) for c in columns]
        order = (
            tuple(sorted(range(len(codes)), key=codes.__getitem__))
            if commutes
            else _used(stage.body)
        )
        code = tuple(codes[n] for n in order), _sizes(stage.loops[k] for k in sums)
        if best is None or code < best[0]:
            best = code, sums, order
    assert best is not None
    code, sums, order = best
    new = _reordered(stage, sums, order)
    assert not isinstance(new.body, expr.Stage)
    whole = (*code, _sizes(stage.iters), stage.monoid, _text(new.body))
    return _Form(new, order, _hash(whole))


def _reordered(stage: Stage, sums: Sequence[int], order: Sequence[int]) -> Stage:
    """The stage with its sum loops and factors in this order."""
    first = len(stage.iters)
    if list(sums) != list(range(first, first + len(sums))):
        stage = chosen(stage, range(first), sums)
    assert not isinstance(stage.body, expr.Stage)
    factors = tuple(stage.factors[n] for n in order)
    constant = constant_of(stage)
    if constant is not None:
        body = product_body(tuple(f.dtype for f in factors), stage.body[0].dtype, constant)
        return stage._replace(factors=factors, body=body)
    place = {old: new for new, old in enumerate(order)}
    body = transform_all(
        stage.body, lambda n: argument(place[n.number], n.dtype) if isinstance(n, Arg) else n
    )
    return stage._replace(factors=factors, body=body)


# ---- codes --------------------------------------------------------------------------------------


def _size(size: Size) -> int:
    """An int; a symbol's is a hash, far from those of numbers."""
    return size if isinstance(size, int) else _symbol(size.key)


@lru_cache(maxsize=4096)
def _symbol(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "big") + (1 << 128)


def _sizes(sizes: Iterable[Size]) -> tuple[int, ...]:
    return tuple(map(_size, sizes))


@lru_cache(maxsize=256)
def _param_codes(params: tuple[TensorType | None, ...]) -> _Code:
    return tuple(() if p is None else (p.dtype.name, _sizes(p.shape)) for p in params)


@lru_cache(maxsize=4096)
def _text(body: Scalars) -> tuple[str, ...]:
    """The scalars under a body, one by one, operands by their places."""
    place: dict[object, int] = {}
    lines = []
    for node in walk(*body):
        match node:
            case Const():
                own = repr(node.value)
            case Arg():
                own = str(node.number)
            case IndexValue():
                own = node.index.key
            case Read():
                bound = [v.key for v, _ in node.indirect]
                own = f"{node.source} {[i.key for i in node.indices]} {bound} {node.fill!r}"
            case _:
                own = getattr(node, "function", "")
        operands = [place[c] for c in children(node)]
        place[node] = len(lines)
        lines.append(f"{type(node).__name__} {node.dtype.name} {own} {operands}")
    return (*lines, str([place[b] for b in body]))


@lru_cache(maxsize=4096)
def _used(body: Scalars) -> tuple[int, ...]:
    """The numbers of the factors, in order of use."""
    return tuple(dict.fromkeys(n.number for n in walk(*body) if isinstance(n, Arg)))


class _Columns(NamedTuple):
    """An access as codes: what depends on no loop, a column for each loop, and the forms where they
    have digits, of which a column does not say all."""

    fixed: _Code
    loops: tuple[_Code, ...]
    forms: tuple[Affine, ...]

    def code(self, order: Sequence[int]) -> _Code:
        """The access with its loops in another order."""
        columns = tuple(self.loops[k] for k in order)
        return self.fixed, columns, tuple(_digits(f, order) for f in self.forms)


def _columns(factor: Factor, name: bytes, count: int) -> _Columns:
    forms = factor.forms
    fixed = (
        name,
        factor.component,
        factor.dtype.name,
        "" if factor.fill is None else repr(factor.fill.value),
        _sizes(f.offset for f in forms),
    )
    loops = tuple(map(_sizes, zip(*(f.steps for f in forms), strict=True))) or ((),) * count
    digits = forms if any(f.digits for f in forms) else ()
    if digits:
        loops = tuple(
            (*column, *chain.from_iterable(_column(f, k) for f in forms))
            for k, column in enumerate(loops)
        )
    return _Columns(fixed, loops, digits)


def _column(form: Affine, loop: int) -> _Code:
    """What the digits of a form say of a loop, whatever the order of both."""
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


def _orders(stage: Stage, columns: Sequence[_Columns]) -> list[tuple[int, ...]]:
    """The orders of the sum loops among which the least code decides: mostly one."""
    first = len(stage.iters)
    numbers = range(first, first + len(stage.sums))
    if len(numbers) < 2:
        return [tuple(numbers)]
    found = [
        (_size(stage.loops[k]), sorted((c.fixed, c.loops[k]) for c in columns)) for k in numbers
    ]
    colours, count = _ranked(found), 0
    while count < max(colours) + 1 < len(numbers):
        count = max(colours) + 1
        coloured = list(zip(colours, numbers, strict=True))
        marks = _ranked(
            [
                (
                    c.fixed,
                    c.loops[:first],
                    sorted((colour, c.loops[k]) for colour, k in coloured),
                )
                for c in columns
            ]
        )
        pairs = list(zip(marks, columns, strict=True))
        colours = _ranked(
            [(colour, sorted((mark, c.loops[k]) for mark, c in pairs)) for colour, k in coloured]
        )
    classes: list[list[int]] = [[] for _ in range(max(colours) + 1)]
    for colour, k in zip(colours, numbers, strict=True):
        classes[colour].append(k)
    if prod(factorial(len(c)) for c in classes) > _MOST_ORDERS:
        return [tuple(chain.from_iterable(classes))]
    return [tuple(chain.from_iterable(parts)) for parts in product(*map(permutations, classes))]


def _ranked(keys: Sequence[Any]) -> list[int]:
    """The place of each key among the different ones."""
    different = sorted(keys)
    place: dict[int, int] = {}
    rank = -1
    for n, key in enumerate(different):
        rank += n == 0 or key != different[n - 1]
        place[id(key)] = rank
    return [place[id(key)] for key in keys]
