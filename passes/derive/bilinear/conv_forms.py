"""Lists the bilinear forms that a convolution may take, by the error bound of each form.

Let a tile have inputs of at most X and weights of at most W, and let n be the largest number of
roundings between an input and a result.  The error of a result is at most

    amplification * g(n) * X * W

summed over taps and channels (see `algorithms`).  A form is allowed under two conditions.  First, n
is at most the number of terms of the direct sum, so that the form keeps the bound of the error
policy.  Second, one rounding, amplified, is at most `AMPLIFIED` times the largest product.  That is
a fifth of the difference that whole models may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from tcc.ir.index import as_int
from tcc.passes.derive.bilinear.algorithms import MOST_PRODUCTS
from tcc.passes.derive.bilinear.tiled_conv import (
    DIRECT,
    AxisForm,
    Conv,
    ConvAxis,
    Form,
    facts_of,
    points,
)
from tcc.passes.fuse.unroll import MOST_RESULTS
from tcc.schedule.alternatives import Seconds
from tcc.schedule.limits import Rates
from tcc.schedule.nest import typical

UNIT_ROUNDOFF = 2.0**-24
AMPLIFIED = 2e-5


def forms_of(conv: Conv) -> Iterator[Form]:
    """Yields all allowed forms that use a fast algorithm along at least two axes.

    A convolution with several taps and results along one axis only has forms that use it there.
    """
    forms: list[Form] = [()]
    choices = [_axis_forms(axis) for axis in conv.axes]
    for axis_choices in choices:
        forms = [
            (*f, g) for f, g in product(forms, axis_choices) if points(f) * g.points <= MOST_RESULTS
        ]
    fewest = min(2, sum(len(axis_choices) > 1 for axis_choices in choices))
    terms = prod(axis.taps for axis in conv.axes) * (conv.channels // conv.groups)
    for form in forms:
        if sum(f != DIRECT for f in form) >= max(1, fewest):
            small = UNIT_ROUNDOFF * amplification(conv, form) <= AMPLIFIED
            if small and roundings(conv, form) <= terms:
                yield form


def amplification(conv: Conv, form: Form) -> float:
    """Returns the bound on a result's error divided by the bound for the direct sum, if both sums
    have equally many roundings."""
    return prod(facts.amplification for facts in facts_of(conv, form))


def roundings(conv: Conv, form: Form) -> int:
    """Returns the largest number of roundings between an operand and a result.

    It is the roundings of the transforms, plus 1 for the weight, plus 1 for each term of the sum
    over pieces of the filter and channels of a group: pieces * channels terms.
    """
    facts = facts_of(conv, form)
    pieces = prod(axis_facts.pieces for axis_facts in facts)
    return (
        sum(axis_facts.roundings for axis_facts in facts)
        + 1
        + pieces * (conv.channels // conv.groups)
    )


def _axis_forms(axis: ConvAxis) -> list[AxisForm]:
    """Returns the forms F(tile, taps) of an axis.

    `taps` divides the taps of a class evenly among pieces, up to padding: 7 taps give pieces of 4,
    3 and 2, but not of 5.  `tile` is at most the number of results of a phase (see `ConvAxis`).
    """
    taps, results = -(-axis.taps // axis.classes), -(-typical(axis.results) // axis.phases)
    lengths = {-(-taps // -(-taps // limit)) for limit in range(2, MOST_PRODUCTS)}
    tiled = (
        AxisForm(tile, length)
        for length in sorted(lengths)
        if length > 1
        for tile in range(2, min(MOST_PRODUCTS - length + 1, results) + 1)
    )
    return [DIRECT, *tiled]


# ---- work of a form -----------------------------------------------------------------------------


def least_seconds(conv: Conv, form: Form, rates: Rates) -> Seconds:
    """Returns a lower bound of the seconds that a convolution in a bilinear form takes in one run.

    The bound counts four quantities: the multiply-adds of the products V * U and the operations of
    the transforms at peak rate, the bytes of the weights U, and the bytes of V and M, which one
    kernel stores and the next kernel loads, at the bandwidth of the second-level caches.  A
    symbolic number of images counts as 1.
    """
    images, axes, facts = as_int(conv.images) or 1, conv.axes, facts_of(conv, form)
    tiles, pieces = images * prod(f.tiles for f in facts), prod(f.pieces for f in facts)
    spread = images * prod(f.lines for f in facts) * conv.channels
    gathered = tiles * prod(a.phases for a in axes) * conv.filters
    terms = pieces * (conv.channels // conv.groups)
    inward = outward = 0
    for n, axis_facts in enumerate(facts):
        before, after = form[:n], points(form[n + 1 :])
        inward += axis_facts.inward * points(before) * after
        outward += axis_facts.outward * prod(f.tile for f in before) * after
    multiply_adds = points(form) * gathered * terms
    weight_bytes = 4 * points(form) * prod(a.filters for a in axes) * terms * conv.filters
    operations = spread * inward + gathered * outward
    exchanged_bytes = 4 * points(form) * (spread + gathered)
    multiplying = max(multiply_adds / rates.products, weight_bytes / rates.weights)
    adding = max(operations / rates.products, exchanged_bytes / rates.exchanged)
    return Seconds(multiplying + adding)
