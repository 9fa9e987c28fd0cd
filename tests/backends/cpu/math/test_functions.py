"""Tests of every scalar function and cast on every dtype, and of the vector functions' errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tcc.backends.cpu.llvm.emit import emit_kernel
from tcc.ir.expr.evaluate import evaluate_scalars
from tcc.ir.expr.scalar import FUNCTIONS, Scalar, apply, argument, cast, literal
from tcc.ir.index import const, iterator, var_of
from tcc.ir.narrow import decode
from tcc.ir.tile import Block, Compute, Load, MemorySpace, Store, TileBuffer, TileKernel, lanes
from tcc.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, DType

from tests.backends.cpu.kernels import SERVER, buffer, output
from tests.draws import RNG
from tests.processors import distinct

WIDTH = 19  # A whole vector and a tail.
TYPES = [t for t in DTYPES.values() if not t.is_handle]
COMMON = [t for t in TYPES if not t.is_narrow]


def targets_of(source: DType) -> list[DType]:
    """Returns the targets of casts; casts between two narrow types go through a common type."""
    return [t for t in (COMMON if source.is_narrow else TYPES) if t is not source]


def elementwise(bodies: list[Scalar], args: list[DType], count: int, width: int) -> TileKernel:
    """Returns a kernel of each body over arrays of `count` rows of `width`."""
    unit = iterator("u", count)
    row = var_of(unit)
    assert row is not None
    (l0,) = lanes((width,))
    size = (const(count), const(width))
    ins = [TileBuffer(f"x{n}", t, size, MemorySpace.INPUT) for n, t in enumerate(args)]
    outs = [TileBuffer(f"y{n}", b.dtype, size, MemorySpace.OUTPUT) for n, b in enumerate(bodies)]
    loaded = [Block(f"a{n}", t, (width,)) for n, t in enumerate(args)]
    results = [Block(f"b{n}", b.dtype, (width,)) for n, b in enumerate(bodies)]
    body = (
        *(Load(b, x, (unit, l0)) for b, x in zip(loaded, ins, strict=True)),
        *(Compute(r, b, tuple(loaded)) for r, b in zip(results, bodies, strict=True)),
        *(Store(y, (unit, l0), r) for y, r in zip(outs, results, strict=True)),
    )
    return TileKernel((*ins, *outs), (), (), (row,), body)


def interesting(dtype: DType, count: int) -> np.ndarray:
    """Returns edge cases of a dtype and ordinary values."""
    if dtype is BOOL:
        return RNG.integers(0, 2, (count, WIDTH)).astype(np.bool_)
    if dtype.is_narrow:
        return decode(RNG.integers(0, 256, (count, WIDTH)).astype(np.uint8), dtype)
    if dtype.is_float:
        narrow = dtype if dtype is not BF16 else F32
        info = np.finfo(narrow.carrier)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.5, -2.5, math.inf, -math.inf, math.nan]
        edges += [float(info.tiny), float(info.smallest_subnormal) * 3, float(info.max), 88.5]
        usual = RNG.standard_normal((count, WIDTH)) * 4
    else:
        limits = np.iinfo(dtype.carrier)
        edges = [0, 1, 2, 3, 7, limits.max, limits.min, limits.max - 1]
        edges += [-1, -2, -7] if limits.min else [limits.max // 2]
        usual = RNG.integers(max(limits.min, -40), min(limits.max, 40), (count, WIDTH))
    edge_values = np.array(edges, np.float64 if dtype.is_float else dtype.carrier)[
        RNG.integers(0, len(edges), (count, WIDTH))
    ]
    mixed = np.where(RNG.random((count, WIDTH)) < 0.4, edge_values, usual)
    with np.errstate(all="ignore"):
        array = mixed.astype(dtype.carrier)
    if dtype is BF16:
        array = (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return array


EXACT_FLOAT = (
    "add sub mul div max min neg abs sign floor ceil round trunc sqrt",
    "eq ne lt le gt ge is_nan is_inf select mod rem",
)
INTEGER = (
    "add sub mul div mod rem pow max min neg abs sign bit_and bit_or bit_xor bit_not",
    "shift_left shift_right eq ne lt le gt ge select",
)
BOOLEAN = ("and or xor not eq ne select",)


def words(lines: tuple[str, ...]) -> list[str]:
    return " ".join(lines).split()


APPROXIMATE = [
    *(n for n in FUNCTIONS if n not in words(EXACT_FLOAT + INTEGER + BOOLEAN)),
    "pow",
]


def applied(name: str, dtype: DType) -> tuple[Scalar, list[DType]]:
    args = [BOOL, dtype, dtype] if name == "select" else [dtype] * FUNCTIONS[name].arity
    return apply(name, *(argument(n, t) for n, t in enumerate(args))), args


def same(got: np.ndarray, want: np.ndarray, name: str) -> None:
    np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize(
    ("dtype", "names"),
    [
        *(pytest.param(t, words(EXACT_FLOAT), id=t.name) for t in (F16, BF16, F32, F64)),
        *(pytest.param(t, words(INTEGER), id=t.name) for t in COMMON if t.is_integer),
        pytest.param(BOOL, words(BOOLEAN), id="bool"),
    ],
)
def test_exact_functions(check, dtype: DType, names: list[str]):
    """Exact functions equal NumPy's bit for bit."""
    by_signature: dict[tuple[str, ...], list[Scalar]] = {}
    for name in names:
        body, args = applied(name, dtype)
        by_signature.setdefault(tuple(t.name for t in args), []).append(body)
    for signature, bodies in by_signature.items():
        types = [DTYPES[n] for n in signature]
        inputs = [interesting(t, 40) for t in types]
        if dtype.is_integer and len(types) == 2:
            # NumPy defines these exponents and shift counts.
            inputs[1] = np.where(RNG.random((40, WIDTH)) < 0.5, inputs[1] % 9, inputs[1])
        results = [np.zeros((40, WIDTH), b.dtype.carrier) for b in bodies]
        safe = [b for b in bodies if not _undefined(b, dtype)]
        safe_results = [r for b, r in zip(bodies, results, strict=True) if b in safe]
        check(elementwise(safe, types, 40, WIDTH), [*inputs, *safe_results])


def _undefined(body: Scalar, dtype: DType) -> bool:
    """Returns true for integer powers, which have a separate test: NumPy refuses some exponents."""
    return dtype.is_integer and getattr(body, "function", "") == "pow"


@pytest.mark.parametrize("dtype", [t for t in COMMON if t.is_integer], ids=str)
def test_integer_power(check, dtype: DType):
    body, types = applied("pow", dtype)
    base = interesting(dtype, 30)
    signed = np.iinfo(dtype.carrier).min < 0
    exponent = RNG.integers(-3 if signed else 0, 9, (30, WIDTH)).astype(dtype.carrier)
    kernel = elementwise([body], types, 30, WIDTH)
    check(kernel, [base, exponent, np.zeros_like(base)])


@pytest.mark.parametrize("target", distinct("host", "x86-64-v3", "x86-64-v2"), indirect=True)
@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts(check, source: DType):
    bodies: list[Scalar] = [cast(argument(0, source), t) for t in targets_of(source)]
    x = interesting(source, 30)
    outs = [np.zeros(x.shape, b.dtype.carrier) for b in bodies]
    with np.errstate(all="ignore"):
        check(elementwise(bodies, [source], 30, WIDTH), [x, *outs])


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("arity", [1, 2])
def test_approximate_functions(check, arity: int, dtype: DType):
    """Approximate functions have NumPy's NaN and infinities, and values within a few units."""
    names = [n for n in APPROXIMATE if FUNCTIONS[n].arity == arity]
    bodies = [applied(name, dtype)[0] for name in names]
    inputs = [interesting(dtype, 60) for _ in range(arity)]
    rtol = {"f16": 1e-3, "bf16": 1e-2, "f32": 5e-7, "f64": 1e-15}[dtype.name]
    tiny = {"f16": 6e-8, "bf16": 1e-40, "f32": 4e-45, "f64": 1e-323}[dtype.name]
    results = [np.zeros((60, WIDTH), dtype.carrier) for _ in bodies]
    # The evaluator uses NumPy's functions, which are also a few units off.
    kernel = elementwise(bodies, [dtype] * arity, 60, WIDTH)
    check(kernel, [*inputs, *results], rtol=rtol, atol=2 * tiny)


# ---- error bounds of the vector functions ------------------------------------------------------


def bit_patterns(count: int) -> np.ndarray:
    """Returns floats of every magnitude, uniform over bit patterns; special values come first."""
    bits = RNG.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 1.0]
    x[: len(special)] = special
    return x


def spread(low: float, high: float) -> Callable[[int], np.ndarray]:
    return lambda count: RNG.uniform(low, high, count).astype(np.float32)


ERF = np.vectorize(math.erf, otypes=[np.float64])
BOUNDS = [
    ("exp", np.exp, 1.0, (bit_patterns, spread(-104, 89), spread(-1, 1))),
    ("expm1", np.expm1, 2.0, (bit_patterns, spread(-20, 89), spread(-1, 1))),
    ("tanh", np.tanh, 3.0, (bit_patterns, spread(-10, 10), spread(-0.5, 0.5))),
    ("log", np.log, 1.0, (bit_patterns, spread(0, 10), spread(0.9, 1.1))),
    ("log1p", np.log1p, 2.0, (bit_patterns, spread(-1, 10), spread(-0.1, 0.1))),
    ("erf", ERF, 2.0, (bit_patterns, spread(-4.5, 4.5), spread(-1, 1))),
    ("sin", np.sin, 2.0, (bit_patterns, spread(-100, 100), spread(-1e6, 1e6))),
    ("cos", np.cos, 2.0, (bit_patterns, spread(-100, 100), spread(-1e6, 1e6))),
    ("tan", np.tan, 4.0, (bit_patterns, spread(-100, 100), spread(-1e6, 1e6))),
    ("asin", np.arcsin, 3.0, (bit_patterns, spread(-1.001, 1.001), spread(0.4, 0.6))),
    ("acos", np.arccos, 2.0, (bit_patterns, spread(-1.001, 1.001), spread(0.4, 0.6))),
    ("atan", np.arctan, 2.0, (bit_patterns, spread(-2, 2), spread(-100, 100))),
    ("sinh", np.sinh, 3.0, (bit_patterns, spread(-90, 90), spread(-1, 1))),
    ("cosh", np.cosh, 3.0, (bit_patterns, spread(-90, 90), spread(-1, 1))),
    ("asinh", np.arcsinh, 2.0, (bit_patterns, spread(-9, 9), spread(-0.5, 0.5))),
    ("acosh", np.arccosh, 3.0, (bit_patterns, spread(0.9, 2), spread(1, 100))),
    ("atanh", np.arctanh, 3.0, (bit_patterns, spread(-1.001, 1.001), spread(-0.1, 0.1))),
]


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Returns the error of f32 values in units of the last place of the expected values."""
    with np.errstate(all="ignore"):
        nearest = want.astype(np.float32)
        unit = np.spacing(np.abs(nearest)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - want) / unit
    exact = (got == nearest) | (np.isnan(got) & np.isnan(want))
    error[exact & ~np.isfinite(want)] = 0
    error[(got == nearest) & np.isinf(nearest)] = 0
    error[~np.isfinite(error) & ~exact] = np.inf
    error[np.isnan(error)] = 0
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    return error


@pytest.mark.parametrize(
    ("name", "reference", "bound", "samples"), BOUNDS, ids=lambda v: str(v)[:8]
)
def test_error_bounds(run, name, reference, bound, samples):
    body = apply(name, argument(0, F32))
    x = np.concatenate([sample(1 << 15) for sample in samples]).reshape(-1, 64)
    values = run(elementwise([body], [F32], *x.shape), [x, np.zeros_like(x)])[1]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    worst = ulps(values, exact)
    at = np.unravel_index(np.argmax(worst), x.shape)
    assert worst[at] <= bound, f"{name}({x[at]!r}) = {values[at]!r}, {worst[at]:.2f} ULP off"


def test_power_error(run):
    rows, width = 512, 64
    body = apply("pow", argument(0, F32), argument(1, F32))
    shape = (rows, width)
    cases = [
        (bit_patterns(rows * width).reshape(shape), RNG.uniform(-4, 4, shape).astype(np.float32)),
        (
            np.abs(bit_patterns(rows * width)).reshape(shape),
            spread(-2, 2)(rows * width).reshape(shape),
        ),
        (
            spread(0.5, 2)(rows * width).reshape(shape),
            spread(-100, 100)(rows * width).reshape(shape),
        ),
        (
            RNG.choice([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, -0.5], shape),
            RNG.choice([0.0, -0.0, 1, -1, 3, 2, 0.5, np.inf, -np.inf, np.nan, 16777217.0], shape),
        ),
    ]
    x, y = (
        np.concatenate([part.astype(np.float32) for part in operand])
        for operand in zip(*cases, strict=True)
    )
    kernel = elementwise([body], [F32, F32], *x.shape)
    values = run(kernel, [x, y, np.zeros_like(x)])[2]
    with np.errstate(all="ignore"):
        reference = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(values, reference).max() <= 1.0


def test_gelu_is_within_a_millionth(run):
    x = spread(-8, 8)(512 * 64).reshape(512, 64)
    arg = argument(0, F32)
    inner = apply("erf", apply("mul", arg, literal(math.sqrt(0.5), F32)))
    half = apply("mul", arg, literal(0.5, F32))
    gelu = apply("mul", half, apply("add", inner, literal(1.0, F32)))
    values = run(elementwise([gelu], [F32], 512, 64), [x, np.zeros_like(x)])[1]
    wide = x.astype(np.float64)
    reference = 0.5 * wide * (1 + ERF(wide * math.sqrt(0.5)))
    assert np.abs(values - reference).max() <= 1e-6


def test_one_plus_erf_is_as_near_as_a_rounded_sum(run):
    """The sum of 1 and erf is as accurate as a rounded sum, and it is 0 for x <= -9."""
    edges = [-math.inf, math.inf, math.nan, -3e38, 3e38, -1e30, -9.0, -0.0, 0.0, 1e-40, -1e-40]
    x = np.concatenate([spread(-6, 6)(512 * 64 - len(edges)), np.float32(edges)]).reshape(512, 64)
    body = apply("add", literal(1.0, F32), apply("erf", argument(0, F32)))
    values = run(elementwise([body], [F32], 512, 64), [x, np.zeros_like(x)])[1]
    reference = 1 + ERF(x.astype(np.float64))
    assert np.array_equal(np.isnan(values), np.isnan(reference))
    assert np.nanmax(np.abs(values - reference)) <= 1.3e-7
    assert (values[x <= -9] == 0).all()


def test_products_and_sums_are_not_fused(run):
    """A product and a sum are not fused outside of a Contract."""
    x = RNG.standard_normal((8, 64)).astype(np.float32)
    arg = argument(0, F32)
    body = apply("sub", apply("mul", arg, arg), apply("mul", arg, arg))
    shifted = apply("add", apply("mul", arg, literal(1.1, F32)), literal(-1.1, F32))
    outputs = run(
        elementwise([body, shifted], [F32], 8, 64), [x, np.zeros_like(x), np.zeros_like(x)]
    )
    assert not outputs[1].any()
    (reference,) = evaluate_scalars((shifted,), {}, [x])
    np.testing.assert_array_equal(outputs[2], reference)


def test_every_function_is_tested():
    tested = {*words(EXACT_FLOAT + INTEGER + BOOLEAN), *APPROXIMATE}
    assert tested == set(FUNCTIONS)
    assert I32.is_integer


@pytest.mark.parametrize("dtype", [F32, F16, F64], ids=str)
def test_functions_of_many_rows_are_one_loop(check, dtype: DType) -> None:
    """A function of many rows is a loop, so the code does not grow with the rows.

    Operands differ from row to row, within rows, in both or in neither; the last axis has a tail.
    """
    one = literal(1, dtype)
    x, column, by_row, uniform = (argument(n, dtype) for n in range(4))
    ratio = apply("div", one, apply("add", one, apply("exp", apply("mul", x, column))))
    body = apply("add", apply("mul", apply("tanh", by_row), uniform), ratio)
    calls = []
    for count in (3, 7):
        shape = (count, 2, WIDTH)
        shapes = [shape, (WIDTH,), (count, 1, 1), (1, 1, 1)]
        kernel = whole(body, shapes, shape, dtype)
        arrays = [RNG.uniform(-2, 2, s).astype(dtype.carrier) for s in (*shapes, shape)]
        error = 1e-2 if dtype is F16 else 1e-6
        check(kernel, arrays, rtol=error, atol=error)
        calls.append(emit_kernel(kernel, "k", SERVER).llvm.count("exp"))
    assert calls[0] == calls[1]


def whole(
    body: Scalar, shapes: list[tuple[int, ...]], shape: tuple[int, ...], dtype: DType
) -> TileKernel:
    """Returns `body` over whole arrays of these shapes, as one block each."""
    ins = [buffer(f"x{n}", dtype, shape_of_operand) for n, shape_of_operand in enumerate(shapes)]
    blocks = [Block(f"a{n}", dtype, shape_of_operand) for n, shape_of_operand in enumerate(shapes)]
    y, result = output("y", dtype, *shape), Block("b", dtype, shape)
    statements = (
        *(Load(b, x, lanes(b.shape)) for b, x in zip(blocks, ins, strict=True)),
        Compute(result, body, tuple(blocks)),
        Store(y, lanes(shape), result),
    )
    return TileKernel((*ins, y), (), (), (), statements)
