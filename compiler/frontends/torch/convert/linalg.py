"""Converters of linear algebra: what the factorizations of the op table make up.

Everything between the operands and the results is computed in f64.
"""

import numpy as np
from tcc.frontends.scope import Operand
from tcc.frontends.torch.context import CallContext, Converters, Results
from tcc.frontends.torch.convert.create import counted, grid
from tcc.frontends.torch.convert.movement import flipped, swap_axes
from tcc.ir.index import Index, as_int, const, minimum
from tcc.ir.types import F64, I32, I64
from tcc.ops import OPS

# ---- matrices ------------------------------------------------------------------------------------


def _wide(ctx: CallContext, name: str) -> Operand:
    return ctx.operand(name, F64)


def _transposed(ctx: CallContext, x: Operand) -> Operand:
    """Each matrix transposed."""
    return swap_axes(ctx, x, x.rank - 2, x.rank - 1)


def _eye(ctx: CallContext, rows: Index, columns: Index | None = None) -> Operand:
    row, column = grid(ctx, rows, rows if columns is None else columns)
    return ctx.cast(column.equals(row), F64)


def _triangle(ctx: CallContext, x: Operand, upper: bool, beside: int = 0) -> Operand:
    """What lies on one side of the diagonal, that `beside` places from the main one included."""
    return ctx.emit("trilu", x, upper=upper, k=const(beside if upper else -beside))


def _diagonal(ctx: CallContext, x: Operand) -> Operand:
    few = minimum(*x.shape[-2:])
    x = ctx.slice_axis(ctx.slice_axis(x, x.rank - 2, 0, few), x.rank - 1, 0, few)
    return ctx.reduce("sum", _triangle(ctx, _triangle(ctx, x, True), False), x.rank - 1)


def _batched(ctx: CallContext, *operands: Operand) -> list[Operand]:
    """Matrices whose axes before the last two are broadcast to each other."""
    outer = ctx.broadcast(*(x.shape[:-2] for x in operands))
    return [ctx.expand(x, (*outer, *x.shape[-2:])) for x in operands]


def _rows_in(ctx: CallContext, x: Operand, order: Operand) -> Operand:
    """Each matrix with its rows in the order that a vector of places gives."""
    at = ctx.expand(ctx.unsqueeze(order, order.rank), x.shape)
    if x.is_empty:
        return x
    return ctx.emit("gather_elements", x, at, axis=x.rank - 2)


# ---- elimination ---------------------------------------------------------------------------------


def _order(ctx: CallContext, pivots: Operand, rows: Index) -> Operand:
    return ctx.emit("pivot_order", ctx.cast(pivots, I32), rows=rows)


def _solve_half(
    ctx: CallContext, a: Operand, b: Operand, upper: bool, unit: bool = False
) -> Operand:
    a, b = _batched(ctx, a, b)
    return ctx.emit("solve_triangular", a, b, upper=upper, unit=unit)


def _solve_factored(
    ctx: CallContext,
    packed: Operand,
    pivots: Operand,
    b: Operand,
    adjoint: bool = False,
    left: bool = True,
) -> Operand:
    """x of a x = b, or a' x = b, from L and U of a and its exchanged rows; unless `left`, of
    x a = b or x a' = b."""
    if not left:
        found = _solve_factored(ctx, packed, pivots, _transposed(ctx, b), not adjoint)
        return _transposed(ctx, found)
    order = _order(ctx, pivots, packed.shape[-1])
    packed, b = _batched(ctx, packed, b)
    order = ctx.expand(order, (*packed.shape[:-2], order.shape[-1]))
    if not adjoint:
        half = _solve_half(ctx, packed, _rows_in(ctx, b, order), False, True)
        return _solve_half(ctx, packed, half, True)
    transposed = _transposed(ctx, packed)
    half = _solve_half(ctx, transposed, b, False)
    half = _solve_half(ctx, transposed, half, True, True)
    if order.is_empty:
        return half
    last, count = order.rank - 1, order.shape[-1]
    _, back = ctx.emit_all("top_k", [order], axis=last, k=count, largest=False, sorted=True)
    return _rows_in(ctx, half, back)


def _first_zero(ctx: CallContext, packed: Operand) -> Operand:
    """For each U the number, from 1, of the first pivot that is zero; else 0."""
    pivots = _diagonal(ctx, packed)
    count = pivots.shape[-1]
    if as_int(count) == 0:
        return ctx.expand(ctx.filled(0, I32), pivots.shape[:-1])
    left = ctx.size_scalar(count) - counted(ctx, count)
    zero = pivots.equals(0)
    found = ctx.where(zero, left, 0)
    most = ctx.reduce("max", found, pivots.rank - 1)
    number = ctx.size_scalar(count + 1) - most
    none = most.equals(0)
    return ctx.cast(ctx.where(none, 0, number), I32)


def _eliminated(ctx: CallContext, transposed: bool = False) -> tuple[Operand, ...]:
    """L and U of `A`, or of its transpose, in one matrix, and the rows that were exchanged."""
    if not ctx.flag("pivot", True):
        raise ctx.fail("elimination without pivoting is not supported")
    matrix = _wide(ctx, "A")
    return ctx.emit_all("lu", [_transposed(ctx, matrix) if transposed else matrix])


def _is_row_major(ctx: CallContext) -> bool:
    """Whether rows of `A` lie one behind another: torch then factors the transpose for a
    determinant, and gradients read these factors."""
    known = ctx.known("A")
    return known.strides[-2:] == (known.shape[-1], 1)


def _checked(ctx: CallContext, info: Operand, what: str = "a matrix is singular") -> None:
    """Stops the run unless every info is zero."""
    attrs = OPS["check_indices"].attrs(const(1), reason=what)
    ctx.scope.builder.add(OPS["check_indices"], [info.value], attrs, loc=ctx.loc)


def _check_errors(ctx: CallContext) -> Results:
    _checked(ctx, ctx.operand("info"), f"{ctx.text('api_name')} has no result for a matrix")
    return ()


def _factor(ctx: CallContext) -> Results:
    packed, pivots = _eliminated(ctx)
    return packed, pivots, _first_zero(ctx, packed)


def _halves(ctx: CallContext, packed: Operand) -> tuple[Operand, Operand]:
    """L and U."""
    rows, columns = packed.shape[-2:]
    few = minimum(rows, columns)
    left = ctx.slice_axis(packed, packed.rank - 1, 0, few)
    lower = _triangle(ctx, left, False, 1) + _eye(ctx, rows, few)
    return lower, _triangle(ctx, ctx.slice_axis(packed, packed.rank - 2, 0, few), True)


def _exchange(ctx: CallContext, pivots: Operand, rows: Index) -> Operand:
    """The matrix P of P L U."""
    order = _order(ctx, pivots, rows)
    here = ctx.reshape(counted(ctx, rows), (rows, 1))
    return ctx.cast(here.equals(ctx.unsqueeze(order, order.rank - 1)), F64)


def _lu(ctx: CallContext) -> Results:
    packed, pivots = _eliminated(ctx)
    return _exchange(ctx, pivots, packed.shape[-2]), *_halves(ctx, packed)


def _lu_unpack(ctx: CallContext) -> Results:
    packed, pivots = _wide(ctx, "LU_data"), ctx.operand("LU_pivots")
    halves = _halves(ctx, packed) if ctx.flag("unpack_data") else (None, None)
    transposed = ctx.flag("unpack_pivots")
    return _exchange(ctx, pivots, packed.shape[-2]) if transposed else None, *halves


def _lu_solve(ctx: CallContext) -> Operand:
    packed, pivots, b = _wide(ctx, "LU"), ctx.operand("pivots"), _wide(ctx, "B")
    return _solve_factored(ctx, packed, pivots, b, ctx.flag("adjoint"), ctx.flag("left"))


def _solve(ctx: CallContext) -> Results:
    (packed, pivots), b = _eliminated(ctx), _wide(ctx, "B")
    info = _first_zero(ctx, packed)
    if ctx.flag("check_errors"):
        _checked(ctx, info)
    columns = b.rank in (1, packed.rank - 1)
    right = ctx.unsqueeze(b, b.rank) if columns else b
    found = _solve_factored(ctx, packed, pivots, right, left=ctx.flag("left") or columns)
    result = ctx.squeeze(found, (found.rank - 1,)) if columns else found
    return result, packed, pivots, info


def _inverse(ctx: CallContext) -> Results:
    packed, pivots = _eliminated(ctx)
    info = _first_zero(ctx, packed)
    if ctx.flag("check_errors"):
        _checked(ctx, info)
    return _solve_factored(ctx, packed, pivots, _eye(ctx, packed.shape[-1])), info


def _determinant_parts(ctx: CallContext) -> Results:
    parts = _eliminated(ctx, _is_row_major(ctx))
    return ctx.emit("det", _wide(ctx, "A")), *parts


def _sign_and_log(ctx: CallContext) -> Results:
    """The sign of the determinant and the logarithm of its size."""
    packed, pivots = _eliminated(ctx, _is_row_major(ctx))
    diagonal = _diagonal(ctx, packed)
    last = (diagonal.rank - 1,)
    steps = counted(ctx, diagonal.shape[-1]) + 1
    stays = ctx.cast(pivots, I64).equals(steps)
    turns = ctx.where(stays, ctx.filled(1.0, F64), -1.0)
    sign = ctx.reduce("prod", turns * ctx.emit("sign", diagonal), last)
    total = ctx.reduce("sum", ctx.emit("log", abs(diagonal)), last)
    return sign, total, packed, pivots


# ---- triangles -----------------------------------------------------------------------------------


def _solve_triangular(ctx: CallContext) -> Operand:
    a, b = _batched(ctx, _wide(ctx, "self"), _wide(ctx, "B"))
    upper, unit = ctx.flag("upper"), ctx.flag("unitriangular")
    if ctx.flag("left"):
        return _solve_half(ctx, a, b, upper, unit)
    found = _solve_half(ctx, _transposed(ctx, a), _transposed(ctx, b), not upper, unit)
    return _transposed(ctx, found)


def _old_solve_triangular(ctx: CallContext) -> Results:
    b, a = _batched(ctx, _wide(ctx, "self"), _wide(ctx, "A"))
    upper, unit = ctx.flag("upper"), ctx.flag("unitriangular")
    transposed = ctx.flag("transpose")
    used = _transposed(ctx, a) if transposed else a
    return _solve_half(ctx, used, b, upper != transposed, unit), a


def _cholesky(ctx: CallContext) -> Results:
    x, upper = _wide(ctx, "self"), ctx.flag("upper")
    factor, info = ctx.emit_all("cholesky", [_transposed(ctx, x) if upper else x])
    factor = _transposed(ctx, factor) if upper else factor
    if ctx.flag("check_errors", True):
        _checked(ctx, info, "a matrix is not positive definite")
    return factor, info


def _solve_cholesky(ctx: CallContext, factor: Operand, b: Operand, upper: bool) -> Operand:
    first = _transposed(ctx, factor) if upper else factor
    half = _solve_half(ctx, first, b, False)
    return _solve_half(ctx, _transposed(ctx, first), half, True)


def _cholesky_solve(ctx: CallContext) -> Operand:
    factor, b = _wide(ctx, "input2"), _wide(ctx, "self")
    return _solve_cholesky(ctx, factor, b, ctx.flag("upper"))


def _cholesky_inverse(ctx: CallContext) -> Operand:
    factor = _wide(ctx, "self")
    eye = _eye(ctx, factor.shape[-1])
    return _solve_cholesky(ctx, factor, eye, ctx.flag("upper"))


# ---- orthogonal factors --------------------------------------------------------------------------


def _reflectors(ctx: CallContext, packed: Operand, tau: Operand) -> tuple[Operand, Operand]:
    """V and T of the product of reflections I - V T V'.

    With S the part of V' V above the diagonal and D the factors, T is (I + D S)^-1 D.
    """
    count = tau.shape[-1]
    given = ctx.slice_axis(packed, packed.rank - 1, 0, count)
    eye = _eye(ctx, given.shape[-2], count)
    vectors = _triangle(ctx, given, False, 1) + eye
    above = _triangle(ctx, _transposed(ctx, vectors) @ vectors, True, 1)
    factors = ctx.unsqueeze(tau, tau.rank)
    system = factors * above + _eye(ctx, count)
    scaled = factors * _eye(ctx, count)
    return vectors, _solve_half(ctx, system, scaled, True, True)


def _orthogonal(ctx: CallContext, packed: Operand, tau: Operand, columns: Index) -> Operand:
    """The first columns of the product of reflections."""
    vectors, middle = _reflectors(ctx, packed, tau)
    head = ctx.slice_axis(vectors, vectors.rank - 2, 0, minimum(columns, vectors.shape[-2]))
    transposed = _transposed(ctx, head)
    change = vectors @ middle @ transposed
    return _eye(ctx, packed.shape[-2], columns) - change


def _householder(ctx: CallContext) -> Operand:
    packed, tau = _wide(ctx, "input"), _wide(ctx, "tau")
    return _orthogonal(ctx, packed, tau, packed.shape[-1])


def _multiply_orthogonal(ctx: CallContext) -> Operand:
    """Q C, Q' C, C Q or C Q'."""
    packed, tau, c = _wide(ctx, "self"), _wide(ctx, "input2"), _wide(ctx, "input3")
    vectors, middle = _reflectors(ctx, packed, tau)
    if ctx.flag("transpose"):
        middle = _transposed(ctx, middle)
    transposed = _transposed(ctx, vectors)
    if ctx.flag("left"):
        return c - (vectors @ middle) @ (transposed @ c)
    return c - c @ vectors @ middle @ transposed


def _qr(ctx: CallContext) -> Results:
    x, mode = _wide(ctx, "A"), ctx.text("mode")
    packed, tau = ctx.emit_all("qr", [x])
    rows, columns = x.shape[-2:]
    few = rows if mode == "complete" else minimum(rows, columns)
    right = _triangle(ctx, ctx.slice_axis(packed, packed.rank - 2, 0, few), True)
    return None if mode == "r" else _orthogonal(ctx, packed, tau, few), right


# ---- singular values, eigenvalues ----------------------------------------------------------------


def _completed(ctx: CallContext, x: Operand) -> Operand:
    """Orthonormal columns with those that the whole space has beyond them."""
    packed, tau = ctx.emit_all("qr", [x])
    rows, columns = x.shape[-2:]
    whole = _orthogonal(ctx, packed, tau, rows)
    more = ctx.slice_axis(whole, whole.rank - 1, columns, rows - columns)
    return ctx.concat([x, more], x.rank - 1)


def _svd(ctx: CallContext) -> Results:
    u, s, vt = ctx.emit_all("svd", [_wide(ctx, "A")])
    if not ctx.flag("compute_uv"):
        return None, s, None
    if ctx.flag("full_matrices"):
        u, vt = _completed(ctx, u), _transposed(ctx, _completed(ctx, _transposed(ctx, vt)))
    return u, s, vt


def _eigen(ctx: CallContext, x: Operand, upper: bool) -> tuple[Operand, Operand]:
    """Rising eigenvalues and eigenvectors of symmetric matrices, of which a triangle is read.

    Shifted by their norm they have no negative eigenvalue, and those are singular values.
    """
    half = _triangle(ctx, x, upper)
    whole = half + _transposed(ctx, _triangle(ctx, x, upper, 1))
    shift = ctx.reduce("l2", whole, (x.rank - 2, x.rank - 1), keepdims=True)
    scaled = shift * _eye(ctx, x.shape[-1])
    _, s, vt = ctx.emit_all("svd", [whole + scaled])
    values = s - ctx.squeeze(shift, (x.rank - 1,))
    return flipped(ctx, values, x.rank - 2), flipped(ctx, _transposed(ctx, vt), x.rank - 1)


def _eigh(ctx: CallContext) -> Results:
    values, vectors = _eigen(ctx, _wide(ctx, "A"), ctx.text("UPLO").upper() == "U")
    return values, vectors if ctx.flag("compute_v") else None


def _pseudo_inverse(ctx: CallContext) -> Operand:
    x = _wide(ctx, "self")
    if ctx.flag("hermitian"):
        signed, vectors = _eigen(ctx, x, False)
        sizes, left, right = abs(signed), vectors, _transposed(ctx, vectors)
    else:
        left, signed, right = ctx.emit_all("svd", [x])
        sizes = signed
    if x.is_empty:
        return ctx.full(0, F64, ctx.result_shape())
    most = ctx.reduce("max", sizes, sizes.rank - 1, keepdims=True)
    bound = most * _limit(ctx, "rtol", _default_rtol(ctx, x))
    bound = ctx.emit("max", bound, _limit(ctx, "atol", 0.0))
    kept = sizes > bound
    inverse = ctx.where(kept, ctx.emit("reciprocal", signed), 0)
    back = _transposed(ctx, right) * ctx.unsqueeze(inverse, inverse.rank - 1)
    return back @ _transposed(ctx, left)


def _default_rtol(ctx: CallContext, x: Operand) -> float:
    """torch's own: none where `atol` is given."""
    rows, columns = (as_int(d) for d in x.shape[-2:])
    if ctx.has("atol"):
        return 0.0
    if rows is None or columns is None:
        raise ctx.fail("sizes must be known unless rtol is given")
    precision = float(np.finfo(ctx.result_dtype().carrier).eps)
    return precision * max(rows, columns)


def _limit(ctx: CallContext, name: str, default: float) -> Operand:
    given = ctx.operand(name, F64, default)
    return ctx.unsqueeze(given, given.rank) if given.rank else given


# ---- powers and exponentials ---------------------------------------------------------------------

_TERMS = 18  # of the series of exp for matrices of norm 1/2 at most: 1e-21
_SQUARINGS = 32  # norms up to 2^31; exp of what is larger overflows unless it only turns


def _exponential(ctx: CallContext) -> Operand:
    """exp by its series on a part of the matrix, squared as often as that needs."""
    x = _wide(ctx, "self")
    if x.is_empty:
        return x
    norm = ctx.reduce("sum", abs(x), x.rank - 1, keepdims=True)
    norm = ctx.reduce("max", norm, x.rank - 2, keepdims=True)
    double = ctx.emit("max", norm * 2, 1)
    log = ctx.emit("log", double) / float(np.log(2))
    count = ctx.emit("min", ctx.emit("ceil", log), float(_SQUARINGS))
    part = x / ctx.emit("pow", ctx.scalar(2, x), count)
    eye = _eye(ctx, x.shape[-1])
    found = eye
    for term in range(_TERMS, 0, -1):
        found = (part @ found) * (1 / term) + eye
    for step in range(_SQUARINGS):
        more = count > float(step)
        found = ctx.where(more, found @ found, found)
    return found


CONVERTERS: Converters = {
    "_linalg_det": _determinant_parts,
    "_linalg_slogdet": _sign_and_log,
    "linalg_lu_factor_ex": _factor,
    "linalg_lu": _lu,
    "lu_unpack": _lu_unpack,
    "linalg_lu_solve": _lu_solve,
    "_linalg_solve_ex": _solve,
    "linalg_inv_ex": _inverse,
    "linalg_solve_triangular": _solve_triangular,
    "triangular_solve": _old_solve_triangular,
    "linalg_cholesky_ex": _cholesky,
    "cholesky": lambda ctx: _cholesky(ctx)[0],
    "cholesky_solve": _cholesky_solve,
    "cholesky_inverse": _cholesky_inverse,
    "linalg_householder_product": _householder,
    "ormqr": _multiply_orthogonal,
    "geqrf": lambda ctx: ctx.emit_all("qr", [_wide(ctx, "self")]),
    "linalg_qr": _qr,
    "_linalg_svd": _svd,
    "_linalg_eigh": _eigh,
    "linalg_pinv.atol_rtol_tensor": _pseudo_inverse,
    "linalg_matrix_exp": _exponential,
    "_linalg_check_errors": _check_errors,
}
