"""Tests of every scalar function and cast on every dtype, and of the f32 functions' errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tcc.backends.gpu.triton.print import triton_source
from tcc.errors import UserError
from tcc.ir.expr.scalar import FUNCTIONS, Scalar, apply, argument, cast, literal
from tcc.ir.index import const, iterator, var_of
from tcc.ir.narrow import decode
from tcc.ir.tile import Block, Compute, Load, MemorySpace, Store, TileBuffer, TileKernel, lanes
from tcc.ir.types import BF16, BOOL, DTYPES, F16, F32, F64, DType

from tests.draws import RNG
from tests.lib.interpreter.running import NEEDS_TRITON, Job, evaluated, interpreted, interpreter

pytestmark = [*NEEDS_TRITON, pytest.mark.xdist_group("interpreter")]
COUNT = 1024
BOUNDED = 1 << 13
TYPES = [t for t in DTYPES.values() if not t.is_handle]
COMMON = [t for t in TYPES if not t.is_narrow]


def targets_of(source: DType) -> list[DType]:
    """Returns the targets of casts; casts between two narrow types go through a common type."""
    return [t for t in (COMMON if source.is_narrow else TYPES) if t is not source]


def elementwise(bodies: Sequence[Scalar], args: Sequence[DType], count: int) -> TileKernel:
    """Returns a kernel of each body over one block of `count` elements."""
    only = var_of(iterator("u", 1))
    assert only is not None
    (lane,) = lanes((count,))
    size = (const(count),)
    ins = [TileBuffer(f"x{n}", t, size, MemorySpace.INPUT) for n, t in enumerate(args)]
    outs = [TileBuffer(f"y{n}", b.dtype, size, MemorySpace.OUTPUT) for n, b in enumerate(bodies)]
    loaded = [Block(f"a{n}", t, (count,)) for n, t in enumerate(args)]
    results = [Block(f"b{n}", b.dtype, (count,)) for n, b in enumerate(bodies)]
    body = (
        *(Load(b, x, (lane,)) for b, x in zip(loaded, ins, strict=True)),
        *(Compute(r, b, tuple(loaded)) for r, b in zip(results, bodies, strict=True)),
        *(Store(y, (lane,), r) for y, r in zip(outs, results, strict=True)),
    )
    return TileKernel((*ins, *outs), (), (), (only,), body)


def job_of(bodies: Sequence[Scalar], inputs: Sequence[np.ndarray], types: Sequence[DType]) -> Job:
    count = len(inputs[0])
    results = [np.zeros(count, b.dtype.carrier) for b in bodies]
    return Job(elementwise(bodies, types, count), [*inputs, *results])


def interesting(dtype: DType) -> np.ndarray:
    """Returns edge cases of a dtype and ordinary values."""
    if dtype is BOOL:
        return RNG.integers(0, 2, COUNT).astype(np.bool_)
    if dtype.is_float:
        info = np.finfo((F32 if dtype is BF16 else dtype).carrier)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.5, -2.5, math.inf, -math.inf, math.nan]
        edges += [float(info.tiny), float(info.smallest_subnormal) * 3, float(info.max), 88.5]
        usual = RNG.standard_normal(COUNT) * 4
    else:
        limits = np.iinfo(dtype.carrier)
        edges = [0, 1, 2, 3, 7, limits.max, limits.min, limits.max - 1]
        edges += [-1, -2, -7] if limits.min else [limits.max // 2]
        usual = RNG.integers(max(limits.min, -40), min(limits.max, 40), COUNT)
    chosen = np.array(edges, np.float64 if dtype.is_float else dtype.carrier)
    picked = chosen[RNG.integers(0, len(edges), COUNT)]
    with np.errstate(all="ignore"):
        array = np.where(RNG.random(COUNT) < 0.4, picked, usual).astype(dtype.carrier)
    if dtype.is_narrow:
        array = decode(RNG.integers(0, 256, COUNT).astype(np.uint8), dtype)
    if dtype is BF16:
        array = (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return array


EXACT = (
    "add sub mul div max min neg abs sign floor ceil trunc sqrt eq ne lt le gt ge is_nan is_inf "
    "select"
).split()
EXACT_NARROW = [*EXACT, "mod", "rem", "round"]
INTEGER = (
    "add sub mul div mod rem max min neg abs sign bit_and bit_or bit_xor bit_not "
    "eq ne lt le gt ge select"
).split()
BOOLEAN = (
    "and or xor not eq ne lt le gt ge select bit_and bit_or bit_xor bit_not add mul max min"
).split()
APPROXIMATE = (
    "exp expm1 tanh log log1p erf sin cos tan asin acos atan sinh cosh asinh acosh atanh pow atan2"
).split()
EXACT_TYPES = [
    *((t, EXACT_NARROW) for t in (F16, BF16, F32)),
    (F64, EXACT),
    *((t, INTEGER) for t in COMMON if t.is_integer),
    (BOOL, BOOLEAN),
]


def applied(name: str, dtype: DType) -> tuple[Scalar, list[DType]]:
    args = [BOOL, dtype, dtype] if name == "select" else [dtype] * FUNCTIONS[name].arity
    return apply(name, *(argument(n, t) for n, t in enumerate(args))), args


def exact_jobs(dtype: DType, names: Sequence[str]) -> list[Job]:
    """Returns a job for all functions of each signature."""
    by_signature: dict[tuple[str, ...], list[Scalar]] = {}
    for name in names:
        body, args = applied(name, dtype)
        by_signature.setdefault(tuple(t.name for t in args), []).append(body)
    return [
        job_of(bodies, [interesting(DTYPES[n]) for n in signature], [DTYPES[n] for n in signature])
        for signature, bodies in by_signature.items()
    ]


def assert_equal(job: Job, got: Sequence[np.ndarray]) -> None:
    computes = [s for s in job.kernel.body if isinstance(s, Compute)]
    inputs = len(job.arrays) - len(computes)
    want = evaluated(job)
    for node, g, w in zip(computes, got[inputs:], want[inputs:], strict=True):
        np.testing.assert_array_equal(g, w, err_msg=repr(getattr(node.body, "function", node.body)))


def all_exact() -> list[Job]:
    """Returns jobs of every function on every dtype, with the shifts and powers that NumPy
    defines."""
    jobs = [job for dtype, names in EXACT_TYPES for job in exact_jobs(dtype, names)]
    for dtype in (t for t in COMMON if t.is_integer):
        bodies = [applied(n, dtype)[0] for n in ("pow", "shift_left", "shift_right")]
        second = RNG.integers(0, 7, COUNT).astype(dtype.carrier)
        jobs.append(job_of(bodies, [interesting(dtype), second], [dtype, dtype]))
    return jobs


def casts() -> list[Job]:
    jobs = []
    for source in TYPES:
        bodies = [cast(argument(0, source), t) for t in targets_of(source)]
        jobs.append(job_of(bodies, [interesting(source)], [source]))
    return jobs


def literals() -> list[Job]:
    """Returns jobs in which a literal has the dtype of the other operand."""
    jobs = []
    for dtype in (t for t in COMMON if t is not BOOL):
        a, one = argument(0, dtype), literal(1, dtype)
        bodies = [
            apply("add", a, one),
            apply("sub", one, a),
            apply("select", apply("lt", a, one), one, literal(0, dtype)),
            apply("max", a, literal(3, dtype)),
            apply("mul", literal(0.1, dtype), a) if dtype.is_float else apply("div", a, one),
        ]
        jobs.append(job_of(bodies, [interesting(dtype)], [dtype]))
    return jobs


def unfused() -> list[Job]:
    """Returns a job of a product and a sum, whose result differs if they are fused."""
    product = apply("mul", argument(0, F32), literal(1.1, F32))
    body = apply("add", product, literal(-1.1, F32))
    return [job_of([body], [RNG.standard_normal(512).astype(np.float32)], [F32])]


# ---- error bounds -----------------------------------------------------------------------------


def bit_patterns(count: int) -> np.ndarray:
    """Returns floats of every magnitude, uniform over bit patterns; special values come first."""
    bits = RNG.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 1.0]
    x[: len(special)] = special
    return x


def spread(low: float, high: float) -> Callable[[int], np.ndarray]:
    return lambda count: RNG.uniform(low, high, count).astype(np.float32)


def special(count: int) -> np.ndarray:
    values = [0.0, -0.0, 1, -1, 3, 2, 0.5, np.inf, -np.inf, np.nan, 16777217.0, -2, -0.5]
    return RNG.choice(values, count).astype(np.float32)


ERF = np.vectorize(math.erf, otypes=[np.float64])
BOUNDS = [
    ("exp", np.exp, 3.0, (bit_patterns, spread(-104, 89), spread(-1, 1))),
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
    ("sinh", np.sinh, 4.0, (bit_patterns, spread(-90, 90), spread(-1, 1))),
    ("cosh", np.cosh, 4.0, (bit_patterns, spread(-90, 90), spread(-1, 1))),
    ("asinh", np.arcsinh, 2.0, (bit_patterns, spread(-9, 9), spread(-0.5, 0.5))),
    ("acosh", np.arccosh, 3.0, (bit_patterns, spread(0.9, 2), spread(1, 100))),
    ("atanh", np.arctanh, 3.0, (bit_patterns, spread(-1.001, 1.001), spread(-0.1, 0.1))),
]
PAIRS = [
    ("pow", np.power, 1.0, (bit_patterns, spread(-4, 4))),
    ("pow", np.power, 1.0, (spread(0.5, 2), spread(-100, 100))),
    ("pow", np.power, 1.0, (special, special)),
    ("atan2", np.arctan2, 2.0, (bit_patterns, bit_patterns)),
    ("atan2", np.arctan2, 2.0, (spread(-2, 2), spread(-2, 2))),
    ("atan2", np.arctan2, 2.0, (special, special)),
    ("rem", np.fmod, 0.0, (bit_patterns, bit_patterns)),
    ("mod", np.mod, 0.5, (bit_patterns, bit_patterns)),
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


CASES = [(n, f, bound, (s,)) for n, f, bound, samples in BOUNDS for s in samples] + PAIRS


def bounds() -> list[Job]:
    inputs = [[sample(BOUNDED) for sample in samples] for _, _, _, samples in CASES]
    return [
        job_of([applied(case[0], F32)[0]], x, [F32] * len(x))
        for case, x in zip(CASES, inputs, strict=True)
    ]


def narrow() -> list[Job]:
    jobs = []
    for dtype in (F16, BF16):
        for arity in (1, 2):
            bodies = [applied(n, dtype)[0] for n in APPROXIMATE if FUNCTIONS[n].arity == arity]
            jobs.append(job_of(bodies, [interesting(dtype) for _ in range(arity)], [dtype] * arity))
    return jobs


# ---- tests --------------------------------------------------------------------------------------

Results = dict[str, list[tuple[Job, list[np.ndarray]]]]


@pytest.fixture(scope="module")
def results() -> Results:
    """Returns the results of all launches of this file, which run in one process."""
    makers = (all_exact, casts, literals, unfused, bounds, narrow)
    jobs = {make.__name__: make() for make in makers}
    done = iter(interpreted([job for group in jobs.values() for job in group]))
    return {name: [(job, next(done)) for job in group] for name, group in jobs.items()}


@pytest.mark.parametrize("group", ["all_exact", "casts", "literals", "unfused"])
def test_bit_for_bit(group: str, results: Results) -> None:
    for job, got in results[group]:
        assert_equal(job, got)


def test_error_bounds(results: Results) -> None:
    """Functions are within their error bounds, plus the excess error of NumPy's exp2.

    The interpreter uses NumPy's exp2. It is two units off on most processors, like a device's, and
    nearly three with AVX-512.
    """
    points = np.linspace(-126.0, 128.0, 1 << 20, endpoint=False, dtype=np.float32)
    error = float(ulps(np.exp2(points), np.exp2(points.astype(np.float64))).max())
    excess = max(error - 2.0, 0.0)
    assert excess < 1.0
    for (name, reference, bound, _), (job, got) in zip(CASES, results["bounds"], strict=True):
        x = job.arrays[:-1]
        with np.errstate(all="ignore"):
            want = reference(*(a.astype(np.float64) for a in x))
        worst = ulps(got[-1], want)
        at = int(np.argmax(worst))
        where = ", ".join(repr(float(a[at])) for a in x)
        assert worst[at] <= bound + excess, (
            f"{name}({where}) = {got[-1][at]!r}, {worst[at]:.2f} ULP off"
        )


FLUSHED = """
@triton.jit
def flushed_exp2(x):
    value = tl.exp2(x)
    return tl.where(value < 1.1754943508222875e-38, 0.0, value)
"""


def of_amd(text: str) -> str:
    """Returns the kernel's text for a device whose exp2 flushes denormals, like v_exp_f32."""
    at = text.index("\n\n\n")
    text = text[:at] + "\n" + FLUSHED + text[at:].replace("tl.exp2(", "flushed_exp2(")
    return text.replace("FLUSHES = tl.constexpr(False)", "FLUSHES = tl.constexpr(True)")


def test_denormal_results_are_kept_where_exp2_flushes_them() -> None:
    for name, reference, bound, _ in BOUNDS:
        for sample in (bit_patterns, spread(-104, -80), spread(-1, 1)):
            x = sample(1 << 11)
            job = job_of([applied(name, F32)[0]], [x], [F32])
            got = interpreter().run(job, device=of_amd)[-1]
            with np.errstate(all="ignore"):
                worst = ulps(got, reference(x.astype(np.float64)))
            assert worst.max() <= bound, (name, x[np.argmax(worst)], worst.max())
    x = np.array([-87.4, -88, -90, -95, -100, -103, -103.3, -104.1], np.float32)
    (got,) = interpreter().run(job_of([applied("exp", F32)[0]], [x], [F32]), device=of_amd)[1:]
    assert np.count_nonzero(got) == 7


def test_narrow_floats_are_computed_in_f32(results: Results) -> None:
    for job, got in results["narrow"]:
        rtol, atol = (1e-3, 1.2e-7) if job.kernel.buffers[0].dtype is F16 else (1e-2, 2e-40)
        for g, w in zip(got, evaluated(job), strict=True):
            np.testing.assert_allclose(g, w, rtol=rtol, atol=atol)


def test_functions_that_devices_lack_are_refused_by_name() -> None:
    body = applied("tan", F64)[0]
    with pytest.raises(UserError, match="no function tan of f64"):
        triton_source(elementwise([body], [F64], 16), "k", dot="ieee")


def test_every_function_is_tested() -> None:
    assert {*EXACT_NARROW, *INTEGER, *BOOLEAN, *APPROXIMATE, "shift_left", "shift_right"} == set(
        FUNCTIONS
    )
