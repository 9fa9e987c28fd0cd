"""Lists bilinear algorithms, each as three matrices of exact rational numbers.

An algorithm multiplies sums of inputs by sums of weights, and its results are sums of the products.

    y = C ((A x) * (B w))     A: products x inputs, B: products x weights, C: results x products

    F(2, 3)   y0 = x0*w0 + x1*w1 + x2*w2     2 results of 3 taps in 4 products, not 6
              y1 = x1*w0 + x2*w1 + x3*w2

An algorithm computes the map y[i] = sum(j, k) T[i, j, k] * x[j] * w[k] if, for all i, j and k,
sum(p) C[i, p] * A[p, j] * B[p, k] equals T[i, j, k].  This identity is finite and checked exactly.

F(m, t) computes m results of a correlation with t taps in m + t - 1 products.  It is the transpose
of Toom and Cook's multiplication of polynomials, with one product for each evaluation point
(Winograd, Arithmetic Complexity of Computations, 1980; Lavin and Gray 2016).  For several axes,
algorithms are nested: their matrices are Kronecker products.

Rounding.  Let n be the largest number of roundings between an operand and a result, and u the unit
roundoff.  The error of a result of operands |x[j]| <= X and |w[k]| <= W is at most

    g(n) * sum(p) |C[i, p]| * (sum(j) |A[p, j]|) * (sum(k) |B[p, k]|) * X * W

with g(n) = n*u / (1 - n*u) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections
3.1 and 23.2; for convolutions Barabasz et al., ACM TOMS 46:37, 2020).  The amplification of an
algorithm is the largest of these sums over all results, divided by the same sum of the direct
algorithm.  The amplification of nested algorithms is the product of their amplifications.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm
from typing import TypeAlias

from tcc.frozen import frozen
from tcc.zipped import zip_equal

Row: TypeAlias = tuple[Fraction, ...]
Matrix: TypeAlias = tuple[Row, ...]
# A product of an algorithm: its row of `inputs`, its row of `weights`, its column of `results`.
_Product: TypeAlias = tuple[Row, Row, Row]

# Points at which polynomials are evaluated.  The last point of each algorithm is infinity, which is
# not in this list.  Points of opposite sign share sums, and products with powers of two are exact.
_POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))
# An algorithm of one axis has at most this many products: each is the value of a polynomial at a
# point of its own, and there are the points of `_POINTS` and infinity.
MOST_PRODUCTS = len(_POINTS) + 1


@frozen
class Bilinear:
    """A bilinear algorithm of inputs x and weights w: y = results @ ((inputs @ x) * (weights @ w)).

    Each row of `inputs` and `weights`, and each column of `results`, belongs to one product.
    """

    inputs: Matrix
    weights: Matrix
    results: Matrix

    @property
    def products(self) -> int:
        return len(self.inputs)

    def amplification(self, terms: int) -> Fraction:
        """Returns the largest error bound of a result, divided by the bound for a direct sum of
        `terms` products.

        The module's text has the bound.  The number of roundings n is the same in both bounds, so
        g(n) cancels.
        """
        sizes = [_size(a) * _size(b) for a, b in zip_equal(self.inputs, self.weights)]
        sums = (sum(abs(c) * s for c, s in zip_equal(row, sizes)) for row in self.results)
        return max(map(Fraction, sums)) / terms


@lru_cache(64)
def toom_cook(results: int, taps: int) -> Bilinear:
    """Returns F(results, taps).  Requires at most `MOST_PRODUCTS` products.

    The matrices of inputs and results are integers; only the matrix of weights has fractions.
    """
    points = _POINTS[: results + taps - 2]
    rows = [_product_at(points, point, results, taps) for point in points]
    last = (Fraction(0),) * (results - 1), (Fraction(0),) * (taps - 1)
    rows.append((_polynomial(points), (*last[1], Fraction(1)), (*last[0], Fraction(1))))
    integral = [_integral(*row) for row in rows]
    inputs, weights, columns = (tuple(row[n] for row in integral) for n in range(3))
    return Bilinear(inputs, weights, tuple(zip_equal(*columns)))


def _product_at(points: Sequence[Fraction], at: Fraction, results: int, taps: int) -> _Product:
    """Returns the row of A, the row of B and the column of C that belong to a finite point.

    A, B and C follow from the Lagrange polynomials of `points`.
    """
    roots = [p for p in points if p != at]
    scale = Fraction(1)
    for point in roots:
        scale *= at - point
    inputs = (*_polynomial(roots), Fraction(0))
    return inputs, tuple(at**k / scale for k in range(taps)), tuple(at**i for i in range(results))


def _polynomial(roots: Sequence[Fraction]) -> Row:
    """Returns the coefficients of the product of (x - root), the constant coefficient first."""
    coefficients = [Fraction(1)]
    for root in roots:
        low, high = [-root * c for c in coefficients] + [Fraction(0)], [Fraction(0), *coefficients]
        coefficients = [a + b for a, b in zip_equal(low, high)]
    return tuple(coefficients)


def _integral(inputs: Row, weights: Row, results: Row) -> _Product:
    """Returns an equal product in which `inputs` are coprime integers, and `results` too.

    Each row is multiplied by a number to make it integral.  `weights` is divided by these numbers,
    so the product's effect stays the same.
    """
    a, c = _denominator(inputs), _denominator(results)
    scaled = tuple(x * a for x in inputs), tuple(x * c for x in results)
    return scaled[0], tuple(x / (a * c) for x in weights), scaled[1]


def _denominator(row: Row) -> Fraction:
    common = lcm(*(x.denominator for x in row))
    return Fraction(common, gcd(*(int(x * common) for x in row)))


def _size(row: Row) -> Fraction:
    return sum(map(abs, row), Fraction(0))
