"""Converters of linear algebra, composed of the op table's factorizations.

Everything between operands and results is computed in f64.
"""

import numpy as np
from tcc.frontends.emit import broadcast, concat, emit_all, filled, full, size_scalar
from tcc.frontends.operand import Operand, Refusal
from tcc.frontends.torch.context import (
    CallContext,
    Converters,
    Doubles,
    Results,
    check_indices,
    named,
)
from tcc.frontends.torch.convert.create import counted, grid
from tcc.frontends.torch.convert.movement import flipped
from tcc.ir.index import Index, as_int, const, minimum
from tcc.ir.types import F64, I32, I64

# ---- matrices ------------------------------------------------------------------------------------


def _transposed(x: Operand) -> Operand:
    """Transposes each matrix."""
    return x.swap_axes(-2, -1)


def _eye(rows: Index, columns: Index | None = None) -> Operand:
    row, column = grid(rows, rows if columns is None else columns)
    return column.equals(row).cast(F64)


def _triangle(x: Operand, upper: bool, offset: int = 0) -> Operand:
    """Returns the triangle on one side of a diagonal, including the diagonal.

    The diagonal lies `offset` places off the main one.
    """
    return x.trilu(upper=upper, k=const(offset if upper else -offset))


def _diagonal(x: Operand) -> Operand:
    few = minimum(*x.shape[-2:])
    x = x.slice_axis(-2, 0, few).slice_axis(-1, 0, few)
    return _triangle(_triangle(x, True), False).sum(-1)


def _batched(*operands: Operand) -> list[Operand]:
    """Broadcasts the axes before the last two of several matrices."""
    outer = broadcast(*(x.shape[:-2] for x in operands))
    return [x.expand((*outer, *x.shape[-2:])) for x in operands]


def _rows_in(x: Operand, order: Operand) -> Operand:
    """Permutes the rows of each matrix by a vector of positions."""
    at = order.unsqueeze(order.rank).expand(x.shape)
    if x.is_empty:
        return x
    return x.gather_elements(at, axis=x.rank - 2)


# ---- elimination ---------------------------------------------------------------------------------


def _order(pivots: Operand, rows: Index) -> Operand:
    return pivots.cast(I32).pivot_order(rows=rows)


def _solve_half(a: Operand, b: Operand, upper: bool, unit_diagonal: bool = False) -> Operand:
    a, b = _batched(a, b)
    return a.solve_triangular(b, upper=upper, unit=unit_diagonal)


def _solve_factored(
    packed: Operand,
    pivots: Operand,
    b: Operand,
    adjoint: bool = False,
    from_left: bool = True,
) -> Operand:
    """Solves a x = b from L, U and pivots of a.

    With `adjoint` a' takes the place of a. Unless `from_left`, it solves x a = b.
    """
    if not from_left:
        return _transposed(_solve_factored(packed, pivots, _transposed(b), not adjoint))
    order = _order(pivots, packed.shape[-1])
    packed, b = _batched(packed, b)
    order = order.expand((*packed.shape[:-2], order.shape[-1]))
    if not adjoint:
        half = _solve_half(packed, _rows_in(b, order), False, True)
        return _solve_half(packed, half, True)
    transposed = _transposed(packed)
    half = _solve_half(transposed, b, False)
    half = _solve_half(transposed, half, True, True)
    if order.is_empty:
        return half
    _, back = order.ordered(order.rank - 1, order.shape[-1], False)
    return _rows_in(half, back)


def _first_zero(packed: Operand) -> Operand:
    """Returns for each U the number of its first pivot that is zero, counted from 1; 0 if there is
    none."""
    pivots = _diagonal(packed)
    count = pivots.shape[-1]
    if as_int(count) == 0:
        return filled(0, I32).expand(pivots.shape[:-1])
    reverse_number = size_scalar(count) - counted(count)
    reverse_of_zeros = pivots.equals(0).select(reverse_number, 0)
    highest = reverse_of_zeros.max(pivots.rank - 1)
    number = size_scalar(count + 1) - highest
    return highest.equals(0).select(0, number).cast(I32)


def _eliminated(ctx: CallContext, transposed: bool = False) -> tuple[Operand, ...]:
    """Returns L and U of `A`, or of its transpose, in one matrix, and the pivots."""
    if not ctx.flag("pivot", True):
        raise Refusal("elimination without pivoting is not supported")
    matrix = ctx.operand("A", F64)
    return emit_all("lu", [_transposed(matrix) if transposed else matrix])


def _is_row_major(ctx: CallContext) -> bool:
    """True if `A` is stored row by row.

    torch then factors the transpose for a determinant, and gradients read these factors.
    """
    meta = ctx.known("A")
    return meta.strides[-2:] == (meta.shape[-1], 1)


def _checked(info: Operand, what: str = "a matrix is singular") -> None:
    """Stops the run with an error unless all of `info` are zero."""
    check_indices(info, const(1), what, signed=True)


def _check_errors(info: Operand, api_name: str) -> Results:
    _checked(info, f"{api_name} has no result for a matrix")
    return ()


def _linalg_lu_factor_ex(ctx: CallContext) -> Results:
    packed, pivots = _eliminated(ctx)
    return packed, pivots, _first_zero(packed)


def _halves(packed: Operand) -> tuple[Operand, Operand]:
    """Returns L and U, which `packed` holds in one matrix."""
    rows, columns = packed.shape[-2:]
    few = minimum(rows, columns)
    lower = _triangle(packed.slice_axis(-1, 0, few), False, 1) + _eye(rows, few)
    return lower, _triangle(packed.slice_axis(-2, 0, few), True)


def _exchange(pivots: Operand, rows: Index) -> Operand:
    """Returns the permutation matrix P of the factorization P L U."""
    order = _order(pivots, rows)
    return counted(rows).reshape((rows, 1)).equals(order.unsqueeze(order.rank - 1)).cast(F64)


def _linalg_lu(ctx: CallContext) -> Results:
    packed, pivots = _eliminated(ctx)
    return _exchange(pivots, packed.shape[-2]), *_halves(packed)


def _lu_unpack(
    unpack_pivots: bool, LU_data: Doubles, LU_pivots: Operand, unpack_data: bool
) -> Results:
    halves = _halves(LU_data) if unpack_data else (None, None)
    return _exchange(LU_pivots, LU_data.shape[-2]) if unpack_pivots else None, *halves


def _linalg_lu_solve(
    LU: Doubles, pivots: Operand, B: Doubles, adjoint: bool, left: bool
) -> Operand:
    return _solve_factored(LU, pivots, B, adjoint, left)


def _solve(ctx: CallContext, check_errors: bool, B: Operand, left: bool) -> Results:
    packed, pivots = _eliminated(ctx)
    B = B.cast(F64)
    info = _first_zero(packed)
    if check_errors:
        _checked(info)
    columns = B.rank in (1, packed.rank - 1)
    right = B.unsqueeze(B.rank) if columns else B
    solution = _solve_factored(packed, pivots, right, from_left=left or columns)
    result = solution.squeeze((-1,)) if columns else solution
    return result, packed, pivots, info


def _linalg_inv_ex(ctx: CallContext, check_errors: bool) -> Results:
    packed, pivots = _eliminated(ctx)
    info = _first_zero(packed)
    if check_errors:
        _checked(info)
    return _solve_factored(packed, pivots, _eye(packed.shape[-1])), info


def _determinant_parts(ctx: CallContext, A: Doubles) -> Results:
    parts = _eliminated(ctx, _is_row_major(ctx))
    return A.det(), *parts


def _sign_and_log(ctx: CallContext) -> Results:
    """Returns the sign of the determinant and the logarithm of its absolute value."""
    packed, pivots = _eliminated(ctx, _is_row_major(ctx))
    diagonal = _diagonal(packed)
    last = (-1,)
    steps = counted(diagonal.shape[-1]) + 1
    turns = pivots.cast(I64).equals(steps).select(filled(1.0, F64), -1.0)
    sign = (turns * diagonal.sign()).reduce("prod", last)
    return sign, abs(diagonal).log().sum(last), packed, pivots


# ---- triangular matrices -------------------------------------------------------------------------


def _linalg_solve_triangular(
    x: Doubles, B: Doubles, upper: bool, left: bool, unitriangular: bool
) -> Operand:
    a, b = _batched(x, B)
    if left:
        return _solve_half(a, b, upper, unitriangular)
    return _transposed(_solve_half(_transposed(a), _transposed(b), not upper, unitriangular))


def _triangular_solve(
    x: Doubles, transpose: bool, A: Doubles, upper: bool, unitriangular: bool
) -> Results:
    b, a = _batched(x, A)
    return _solve_half(_transposed(a) if transpose else a, b, upper != transpose, unitriangular), a


def _cholesky(x: Doubles, upper: bool, check_errors: bool = True) -> Results:
    factor, info = emit_all("cholesky", [_transposed(x) if upper else x])
    factor = _transposed(factor) if upper else factor
    if check_errors:
        _checked(info, "a matrix is not positive definite")
    return factor, info


def _cholesky_solve(input2: Doubles, x: Doubles, upper: bool) -> Operand:
    """Solves a y = x from a triangular factor of a, `input2`."""
    first = _transposed(input2) if upper else input2
    half = _solve_half(first, x, False)
    return _solve_half(_transposed(first), half, True)


def _cholesky_inverse(x: Doubles, upper: bool) -> Operand:
    return _cholesky_solve(x, _eye(x.shape[-1]), upper)


# ---- orthogonal factors --------------------------------------------------------------------------


def _reflectors(packed: Operand, tau: Operand) -> tuple[Operand, Operand]:
    """Returns V and T such that the product of the reflections is I - V T V'.

    With S the part of V' V above the diagonal, and D the diagonal matrix of the factors `tau`, T is
    (I + D S)^-1 D.
    """
    count = tau.shape[-1]
    columns = packed.slice_axis(-1, 0, count)
    eye = _eye(columns.shape[-2], count)
    vectors = _triangle(columns, False, 1) + eye
    above = _triangle(_transposed(vectors) @ vectors, True, 1)
    factors = tau.unsqueeze(tau.rank)
    system = factors * above + _eye(count)
    return vectors, _solve_half(system, factors * _eye(count), True, True)


def _orthogonal(packed: Operand, tau: Operand, columns: Index) -> Operand:
    """Returns the first `columns` columns of the product of the reflections."""
    vectors, middle = _reflectors(packed, tau)
    transposed = _transposed(vectors.slice_axis(-2, 0, minimum(columns, vectors.shape[-2])))
    change = vectors @ middle @ transposed
    return _eye(packed.shape[-2], columns) - change


def _linalg_householder_product(x: Doubles, tau: Doubles) -> Operand:
    return _orthogonal(x, tau, x.shape[-1])


def _ormqr(x: Doubles, transpose: bool, input2: Doubles, input3: Doubles, left: bool) -> Operand:
    """Returns Q C, Q' C, C Q or C Q', as the call's flags say."""
    vectors, middle = _reflectors(x, input2)
    if transpose:
        middle = _transposed(middle)
    transposed = _transposed(vectors)
    if left:
        return input3 - (vectors @ middle) @ (transposed @ input3)
    return input3 - input3 @ vectors @ middle @ transposed


def _linalg_qr(A: Doubles, mode: str) -> Results:
    packed, tau = A.emit_all("qr")
    rows, columns = A.shape[-2:]
    few = rows if mode == "complete" else minimum(rows, columns)
    right = _triangle(packed.slice_axis(-2, 0, few), True)
    return None if mode == "r" else _orthogonal(packed, tau, few), right


# ---- singular values, eigenvalues ----------------------------------------------------------------


def _completed(x: Operand) -> Operand:
    """Extends orthonormal columns to a basis of the whole space."""
    packed, tau = x.emit_all("qr")
    rows, columns = x.shape[-2:]
    more = _orthogonal(packed, tau, rows).slice_axis(-1, columns, rows - columns)
    return concat([x, more], x.rank - 1)


def _svd(full_matrices: bool, compute_uv: bool, A: Doubles) -> Results:
    u, s, vt = A.emit_all("svd")
    if not compute_uv:
        return None, s, None
    if full_matrices:
        u, vt = _completed(u), _transposed(_completed(_transposed(vt)))
    return u, s, vt


def _eigen(x: Operand, upper: bool) -> tuple[Operand, Operand]:
    """Returns the eigenvalues of symmetric matrices in ascending order, and the eigenvectors.

    One triangle of each matrix is read. A matrix shifted by its norm has no negative eigenvalue, so
    its eigenvalues are its singular values.
    """
    symmetric = _triangle(x, upper) + _transposed(_triangle(x, upper, 1))
    shift = symmetric.reduce("l2", (-2, -1), keepdims=True)
    scaled = shift * _eye(x.shape[-1])
    _, s, vt = (symmetric + scaled).emit_all("svd")
    return flipped(s - shift.squeeze((-1,)), x.rank - 2), flipped(_transposed(vt), x.rank - 1)


def _eigh(A: Doubles, compute_v: bool, UPLO: str) -> Results:
    values, vectors = _eigen(A, UPLO.upper() == "U")
    return values, vectors if compute_v else None


def _pseudo_inverse(ctx: CallContext, x: Doubles, hermitian: bool) -> Operand:
    if hermitian:
        signed, vectors = _eigen(x, False)
        sizes, u, v = abs(signed), vectors, _transposed(vectors)
    else:
        u, signed, v = x.emit_all("svd")
        sizes = signed
    if x.is_empty:
        return full(0, F64, ctx.result_shape())
    bound = sizes.max(-1, keepdims=True) * _limit(ctx, "rtol", _default_rtol(ctx, x))
    bound = bound.maximum(_limit(ctx, "atol", 0.0))
    inverse = (sizes > bound).select(signed.reciprocal(), 0)
    return (_transposed(v) * inverse.unsqueeze(inverse.rank - 1)) @ _transposed(u)


def _default_rtol(ctx: CallContext, x: Operand) -> float:
    """Returns torch's default of rtol, which is 0 if `atol` is given."""
    rows, columns = (as_int(d) for d in x.shape[-2:])
    if ctx.has("atol"):
        return 0.0
    if rows is None or columns is None:
        raise Refusal("sizes must be known unless rtol is given")
    return float(np.finfo(ctx.result_dtype().carrier).eps) * max(rows, columns)


def _limit(ctx: CallContext, name: str, default: float) -> Operand:
    tolerance = ctx.operand(name, F64, default)
    return tolerance.unsqueeze(tolerance.rank) if tolerance.rank else tolerance


# ---- powers and exponentials ---------------------------------------------------------------------

# The number of terms of the series of exp. Its error is 1e-21 for matrices with a norm of at most
# 1/2.
_TERMS = 18
# The largest number of squarings: enough for matrices with norms up to 2^31. The exponential of a
# larger matrix overflows, unless it is, for example, skew-symmetric (its exponential rotates).
_SQUARINGS = 32


def _linalg_matrix_exp(x: Doubles) -> Operand:
    """Computes the exponential of a matrix by scaling and squaring.

    exp(x) = exp(x / 2^n)^(2^n): a series gives exp(x / 2^n), which is then squared n times.
    """
    if x.is_empty:
        return x
    norm = abs(x).sum(-1, keepdims=True)
    norm = norm.max(-2, keepdims=True)
    double = (norm * 2).maximum(1)
    log = double.log() / float(np.log(2))
    count = log.ceil().minimum(float(_SQUARINGS))
    part = x / (x.like(2) ** count)
    eye = _eye(x.shape[-1])
    power = eye
    for term in range(_TERMS, 0, -1):
        power = (part @ power) * (1 / term) + eye
    for step in range(_SQUARINGS):
        power = (count > float(step)).select(power @ power, power)
    return power


CONVERTERS: Converters = {
    **named(
        _linalg_lu_factor_ex,
        _linalg_lu,
        _lu_unpack,
        _linalg_lu_solve,
        _linalg_inv_ex,
        _linalg_solve_triangular,
        _triangular_solve,
        _cholesky_solve,
        _cholesky_inverse,
        _linalg_householder_product,
        _ormqr,
        _linalg_qr,
        _linalg_matrix_exp,
    ),
    "_linalg_det": _determinant_parts,
    "_linalg_slogdet": _sign_and_log,
    "_linalg_solve_ex": _solve,
    "linalg_cholesky_ex": _cholesky,
    "cholesky": lambda ctx: ctx.run(_cholesky)[0],
    "geqrf": lambda ctx: ctx.operand("self", F64).emit_all("qr"),
    "_linalg_svd": _svd,
    "_linalg_eigh": _eigh,
    "linalg_pinv.atol_rtol_tensor": _pseudo_inverse,
    "_linalg_check_errors": _check_errors,
}
