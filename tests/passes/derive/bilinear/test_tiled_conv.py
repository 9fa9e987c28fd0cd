"""Every kind of convolution in every kind of form agrees with explicit f64 sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tcc.ir.graph import Graph, GraphBuilder
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.verify import verify_graph
from tcc.ir.index import IndexLike, as_int, const, evaluate, symbol
from tcc.ir.program import Branch
from tcc.ir.types import F32, element_count, tensor
from tcc.ops import OPS
from tcc.passes.derive.bilinear.tiled_conv import AxisForm, Form, points
from tcc.passes.derive.derive import Derivations, derive
from tcc.runtime.module import Module
from tcc.schedule.cpu.core import CoreModel

from tests.lib.oracle.program.evaluate import evaluate_program
from tests.part import part
from tests.passes.derive.bilinear.products import Only, form_nodes
from tests.passes.placing import place_graph
from tests.passes.tile.cpu.test_programs import lowered

Array = np.ndarray[Any, np.dtype[Any]]
Run = Callable[[Graph], Module]


@dataclass(frozen=True)
class Case:
    """A convolution, or a transposed convolution, of images of `sizes`. Each sequence has one entry
    per axis, or one for all axes."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1,)
    dilations: tuple[int, ...] = (1,)
    before: tuple[int, ...] = (0,)
    after: tuple[int, ...] = (0,)
    channels: int = 16
    filters: int = 12
    groups: int = 1
    images: IndexLike = 2
    transposed: bool = False
    open: bool = False

    def each(self, values: tuple[int, ...]) -> tuple[int, ...]:
        return values * len(self.sizes) if len(values) == 1 else values

    @property
    def weights(self) -> Array:
        first, second = self.filters, self.channels // self.groups
        if self.transposed:
            first, second = self.channels, self.filters // self.groups
        shape = (first, second, *self.kernel)
        return np.random.default_rng(1).standard_normal(shape).astype(np.float32)

    @property
    def bias(self) -> Array:
        return np.random.default_rng(2).standard_normal(self.filters).astype(np.float32)

    def image(self, count: int) -> Array:
        shape = (count, self.channels, *self.sizes)
        return np.random.default_rng(3).standard_normal(shape).astype(np.float32)

    def graph(self) -> Graph:
        b = GraphBuilder("case")
        sizes: list[IndexLike] = [*self.sizes]
        if self.open:
            sizes = [symbol(f"s{n}", 1) for n in range(len(sizes))]
        x = b.input("x", tensor(F32, self.images, self.channels, *sizes))
        strides, dilations = self.each(self.strides), self.each(self.dilations)
        before, after = (tuple(map(const, self.each(p))) for p in (self.before, self.after))
        op, extra = OPS["conv"], ()
        if self.transposed:
            op, extra = OPS["conv_transpose"], ((0,) * len(self.sizes),)
        attrs = op.attrs(strides, before, after, dilations, *extra, self.groups)
        operands = [x, b.constant(self.weights, "w"), b.constant(self.bias, "bias")]
        return b.finish(b.add(op, operands, attrs))

    def sums(self, image: Array, weights: Array) -> Array:
        """Returns the results without bias, in f64."""
        return self._scattered(image, weights) if self.transposed else self._sums(image, weights)

    def _sums(self, image: Array, weights: Array) -> Array:
        pads = zip(self.each(self.before), self.each(self.after), strict=True)
        padded = np.pad(image.astype(np.float64), [(0, 0), (0, 0), *pads])
        steps = list(zip(self.each(self.strides), self.each(self.dilations), strict=True))
        spans = [(k - 1) * d + 1 for k, (_, d) in zip(self.kernel, steps, strict=True)]
        counts = [
            (n - span) // s + 1
            for n, span, (s, _) in zip(padded.shape[2:], spans, steps, strict=True)
        ]
        out = np.zeros((len(image), self.groups, self.filters // self.groups, *counts))
        grouped = weights.reshape(self.groups, -1, *weights.shape[1:]).astype(np.float64)
        for tap in product(*map(range, self.kernel)):
            places = tuple(
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, n, (s, d) in zip(tap, counts, steps, strict=True)
            )
            seen = padded[(slice(None), slice(None), *places)]
            seen = seen.reshape(len(image), self.groups, -1, *counts)
            out += np.einsum("ngc...,goc->ngo...", seen, grouped[(..., *tap)])
        return out.reshape(len(image), self.filters, *counts)

    def _scattered(self, image: Array, weights: Array) -> Array:
        strides = self.each(self.strides)
        whole = [(n - 1) * s + k for n, s, k in zip(self.sizes, strides, self.kernel, strict=True)]
        out = np.zeros((len(image), self.groups, self.filters // self.groups, *whole))
        seen = image.astype(np.float64).reshape(len(image), self.groups, -1, *self.sizes)
        grouped = weights.reshape(self.groups, -1, *weights.shape[1:]).astype(np.float64)
        for tap in product(*map(range, self.kernel)):
            places = tuple(
                slice(k, k + (n - 1) * s + 1, s)
                for k, n, s in zip(tap, self.sizes, strides, strict=True)
            )
            spread = np.einsum("ngc...,gco->ngo...", seen, grouped[(..., *tap)])
            out[(slice(None), slice(None), slice(None), *places)] += spread
        ends = zip(whole, self.each(self.before), self.each(self.after), strict=True)
        kept = tuple(slice(p, n - q) for n, p, q in ends)
        return out.reshape(len(image), self.filters, *whole)[(slice(None), slice(None), *kept)]


def form(*axes: tuple[int, int]) -> Form:
    return tuple(AxisForm(*axis) for axis in axes)


_D = (1, 1)  # an axis that is computed directly
CASES = {
    "1-D, 3 taps": (Case((29,), (3,), before=(1,), after=(1,)), form((4, 3))),
    "1-D, large tiles": (Case((29,), (3,), before=(2,)), form((6, 3))),
    "1-D, 7 taps": (Case((30,), (7,), before=(3,), after=(3,)), form((2, 7))),
    "1-D, two pieces": (Case((30,), (7,), before=(3,), after=(3,)), form((4, 4))),
    "1-D, pieces of two taps": (Case((17,), (5,), before=(2,), after=(0,)), form((3, 2))),
    "1-D, many pieces": (Case((29,), (12,), before=(6,), after=(6,)), form((3, 4))),
    "1-D, pieces and tiles of a common length": (
        Case((45,), (16,), before=(7,), after=(8,), groups=4),
        form((4, 2)),
    ),
    "1-D, many pieces, stride 2": (
        Case((45,), (16,), strides=(2,), before=(8,), after=(8,), groups=2),
        form((4, 4)),
    ),
    "1-D, dilated": (Case((41,), (3,), dilations=(4,), before=(4,), after=(1,)), form((4, 3))),
    "1-D, stride 2": (Case((33,), (5,), strides=(2,), before=(2,), after=(2,)), form((4, 3))),
    "1-D, stride 3": (Case((40,), (7,), strides=(3,), before=(1,)), form((2, 3))),
    "1 x 7": (Case((5, 17), (1, 7), before=(0, 3), after=(0, 3)), form(_D, (2, 7))),
    "7 x 1, two pieces": (Case((17, 5), (7, 1), before=(3, 0), after=(3, 0)), form((4, 4), _D)),
    "3 x 3, one column": (Case((9, 3), (3, 3), before=(1, 0), after=(1, 0)), form((4, 3), _D)),
    "3 x 3, two tiles": (Case((9, 11), (3, 3), before=(0, 2), after=(1,)), form((2, 3), (4, 3))),
    "3 x 3, odd tiles": (Case((7, 10), (3, 3), before=(1,), after=(1,)), form((3, 3), (3, 3))),
    "3 x 3, pieces of two taps": (Case((8, 8), (3, 3), before=(1,)), form((3, 2), (3, 2))),
    "2 x 2": (Case((13, 12), (2, 2)), form((3, 2), (3, 2))),
    "5 x 5": (Case((14, 13), (5, 5), before=(2,), after=(2,)), form((4, 5), (4, 5))),
    "5 x 5, pieces": (Case((14, 13), (5, 5), before=(2,), after=(2,)), form((4, 3), (2, 5))),
    "7 x 7": (Case((10, 11), (7, 7), before=(3,), after=(3,)), form((3, 4), (4, 4))),
    "groups": (
        Case((9, 9), (5, 5), before=(2,), after=(2,), groups=2, channels=24, filters=20),
        form((2, 5), (4, 5)),
    ),
    "groups, dilated": (
        Case((14, 9), (3, 3), dilations=(3, 1), before=(3, 1), after=(1,), groups=4, channels=32),
        form((2, 3), (4, 3)),
    ),
    "stride 2": (Case((17, 4), (3, 3), strides=(2,), before=(1, 0)), form((3, 2), _D)),
    "stride 2, 4 x 4": (
        Case((16, 15), (4, 4), strides=(2,), before=(1,), after=(1,)),
        form((3, 2), (2, 2)),
    ),
    "stride 2, 7 x 7": (
        Case((18, 18), (7, 7), strides=(2,), before=(3,), after=(3,), channels=12),
        form((4, 4), (3, 2)),
    ),
    "strides 2 and 1": (Case((11, 11), (5, 3), strides=(2, 1), before=(1,)), form((2, 3), (4, 3))),
    "stride beside dilation": (
        Case((11, 12), (3, 3), strides=(2, 1), dilations=(1, 2), before=(1, 2)),
        form((3, 2), (4, 3)),
    ),
    "3-D": (
        Case((5, 4, 6), (3, 3, 3), before=(1,), after=(1,), channels=8),
        form((2, 3), (2, 3), (2, 3)),
    ),
    "3-D, two axes": (Case((3, 6, 7), (2, 3, 3), before=(1,)), form(_D, (4, 3), (3, 3))),
    "3-D, one axis": (Case((5, 6, 7), (3, 1, 1)), form((3, 3), _D, _D)),
    "image smaller than a tile": (
        Case((2, 3), (3, 3), before=(1,), after=(1,)),
        form((2, 3), (3, 3)),
    ),
    "transposed, phases": (
        Case((7, 6), (4, 4), strides=(2,), before=(1,), after=(1,), transposed=True),
        form((3, 2), (3, 2)),
    ),
    "transposed, other phases": (
        Case((6, 7), (6, 4), strides=(2,), before=(2, 1), after=(2, 1), transposed=True),
        form((2, 3), (4, 2)),
    ),
    "transposed, three phases": (
        Case((9,), (9,), strides=(3,), before=(2,), after=(1,), transposed=True),
        form((4, 3)),
    ),
    "transposed, groups": (
        Case((5, 8), (4, 4), strides=(2,), before=(1,), after=(1,), groups=2, transposed=True),
        form((2, 2), (3, 2)),
    ),
    "transposed, rows shifted": (
        Case((9, 6), (4, 1), strides=(2, 1), before=(1, 0), after=(1, 0), transposed=True),
        form((3, 2), _D),
    ),
    "transposed, phases of fewer taps": (
        Case((9, 8), (3, 3), strides=(2,), before=(1,), transposed=True),
        form((3, 2), (2, 2)),
    ),
    "transposed, residues": (
        Case((6, 9), (4, 4), strides=(2,), transposed=True),
        form((3, 2), (3, 2)),
    ),
}


def exact_and_allowed(case: Case, image: Array) -> tuple[Array, Array]:
    """Returns the results in f64, and the bound 2 * g(K) * (|x| * |w|) of each; operands have
    similar magnitudes."""
    bias = case.bias.reshape(-1, *[1] * len(case.sizes))
    terms = case.weights[0].size * (case.channels // case.groups if case.transposed else 1) + 1
    gamma = terms * 2.0**-24 / (1 - terms * 2.0**-24)
    absolute = case.sums(np.abs(image), np.abs(case.weights)) + np.abs(bias)
    return case.sums(image, case.weights) + bias, 2 * gamma * absolute


# One case of each kind of loop nest is compiled as well.
RUN = (
    "1-D, 7 taps", "1-D, pieces and tiles of a common length", "1-D, many pieces, stride 2",
    "1-D, dilated", "1-D, stride 2", "7 x 1, two pieces", "3 x 3, one column",
    "2 x 2", "5 x 5, pieces", "groups, dilated", "stride 2, 4 x 4", "3-D, one axis",
    "transposed, phases", "transposed, three phases", "transposed, groups",
    "transposed, phases of fewer taps",
)  # fmt: skip


@pytest.mark.parametrize("name", part("tiled forms", CASES, 2))
def test_forms_compute_the_convolution(name: str, compiled: Run) -> None:
    case, wanted = CASES[name]
    before = case.graph()
    after = derive(before, Derivations(Only(wanted), growth=1e9))
    verify_graph(after)
    assert [n.op.name for n in form_nodes(after)] == ["expression"] * 3
    image = case.image(2)
    exact, allowed = exact_and_allowed(case, image)
    module = compiled(after) if name in RUN else None
    runs = [run_of(after), *([run_of(after, module)] if module else [])]
    for run in runs:
        actual = run(image)
        assert actual.shape == exact.shape
        assert np.all(np.abs(actual - exact) <= allowed)
    if module:
        check_bad_pixels(case, runs[1], sorted(CASES).index(name))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("1-D, 3 taps", 8),  # one piece: a line for each tile
        ("1-D, two pieces", 9),  # 8 tiles in 16 pairs at 9 places
        ("1-D, many pieces", 30),  # 10 tiles in 30 pairs; there would be 36 places
        ("1-D, pieces and tiles of a common length", 30),  # 12 tiles in 96 pairs
        ("1-D, many pieces, stride 2", 14),  # 6 tiles in 12 pairs per class, at 7 places
        ("5 x 5, pieces", 4 * 2 * 7),  # 4 tiles down in 8 pairs; there would be 16 places
    ],
)
def test_pairs_of_tiles_and_pieces_that_read_the_same_inputs_are_transformed_once(
    name: str, lines: int
) -> None:
    case, wanted = CASES[name]
    after = derive(case.graph(), Derivations(Only(wanted), growth=1e9))
    transformed = form_nodes(after)[0].outputs[0].type
    elements = points(wanted) * 2 * lines * case.channels
    assert as_int(element_count(transformed.shape)) == elements


@pytest.mark.parametrize("name", ["1-D, two pieces", "stride 2, 4 x 4", "transposed, phases"])
def test_the_number_of_images_may_be_symbolic(name: str) -> None:
    case, wanted = CASES[name]
    case = Case(**{**vars(case), "images": symbol("n", 1)})
    before = case.graph()
    after = derive(before, Derivations(Only(wanted), growth=1e9))
    assert [n.op.name for n in form_nodes(after)] == ["expression"] * 3
    image = case.image(3)
    exact, allowed = exact_and_allowed(case, image)
    (actual,) = evaluate_graph(after, {"x": image}).values()
    assert np.all(np.abs(actual - exact) <= allowed)


def of_other_sizes(case: Case) -> Iterator[Case]:
    """Yields the case with smaller and larger images along each axis."""
    for more in (-3, 0, 1, 11):
        sizes = tuple(max(n + more, k) for n, k in zip(case.sizes, case.kernel, strict=True))
        yield replace(case, sizes=sizes)


# The width of a single column equals its images' width, which is unknown if sizes are symbolic.
OPEN = sorted({*RUN} - {"3 x 3, one column"})


@pytest.mark.parametrize("name", part("forms of open sizes", OPEN, 3))
def test_sizes_of_images_may_be_symbolic(name: str, compiled: Run) -> None:
    case, wanted = CASES[name]
    after = derive(replace(case, open=True).graph(), Derivations(Only(wanted), growth=1e9))
    verify_graph(after)
    assert [n.op.name for n in form_nodes(after)] == ["expression"] * 3
    run = run_of(after, compiled(after))
    for number, other in enumerate(of_other_sizes(case)):
        exact, allowed = exact_and_allowed(other, other.image(2))
        actual = run(other.image(2))
        assert actual.shape == exact.shape
        assert np.all(np.abs(actual - exact) <= allowed)
        assert not fails(after, other.image(2))
        check_bad_pixels(other, run, number)


@pytest.mark.parametrize("name", ["1-D, 3 taps", "3 x 3, two tiles", "stride 2, 4 x 4"])
def test_guards_of_symbolic_sizes_are_one_kernel_with_the_reads_of_the_form(name: str) -> None:
    """Strips hold the same number of sums for all sizes, and images are stored no larger than tiles
    reach."""
    case, wanted = CASES[name]
    found = []
    for each in (replace(case, open=True), case):
        placed = place_graph(derive(each.graph(), Derivations(Only(wanted), growth=1e9)))
        found.append((len(placed.kernels), placed.layouts[placed.kernels[0].results[0]].sizes))
    (count, sizes), (expected, _) = found
    assert count == expected
    at = {f"s{n}": size for n, size in enumerate(case.sizes)}
    pads = zip(case.sizes, *map(case.each, (case.before, case.strides)), wanted, strict=True)
    least = [n + p + s * (f.tile + f.taps) for n, p, s, f in pads]
    assert all(evaluate(n, at) <= m for n, m in zip(sizes[1:-1], least, strict=True))


# ---- bad pixels -----------------------------------------------------------------------------


BAD = (1e4, 1e6, 1e30, -3.4e38, np.inf, np.nan)


def spoilt(case: Case, value: float, seed: int) -> tuple[Array, Array]:
    """Returns an image with one bad pixel, in one channel or in all, and a mask of the results that
    read it."""
    rng = np.random.default_rng(seed)
    image = case.image(2)
    place = tuple(int(rng.integers(n)) for n in case.sizes)
    channels = slice(None) if rng.random() < 0.3 else int(rng.integers(case.channels))
    marks = np.zeros_like(image)
    image[(1, channels, *place)] = value
    marks[(1, channels, *place)] = 1
    return image, case.sums(marks, np.ones_like(case.weights)) > 0


def check_bad_pixels(case: Case, run: Callable[[Array], Array], seed: int) -> None:
    """Checks that a bad value changes only results that read it; other results stay within 4 * g(K)
    * (|x| * |w|) of the exact results without the bad pixel."""
    for number, value in enumerate(BAD):
        image, reading = spoilt(case, value, seed + number)
        clean = np.where(np.abs(image) < 100, image, np.float32(0))
        exact, allowed = exact_and_allowed(case, clean)
        with np.errstate(all="ignore"):
            actual = run(image)
        assert np.all((np.abs(actual - exact) <= 2 * allowed) | reading), value
        if not np.isfinite(value):
            assert not np.any(np.isfinite(actual) & reading), value


def fails(graph: Graph, image: Array) -> bool:
    """Returns True if a tile of an image fails the only guard of a graph."""
    (flag,) = (node.inputs[1] for node in graph.nodes if node.op.name == "guarded")
    assert flag is not None
    shown = replace(graph, outputs=(flag,))
    return bool(evaluate_graph(shown, {"x": image})[flag.name])


def run_of(graph: Graph, module: Module | None = None) -> Callable[[Array], Array]:
    (output,) = graph.outputs
    if module is None:
        return lambda image: np.asarray(evaluate_graph(graph, {"x": image})[output.name])
    return lambda image: np.asarray(module.run({"x": image})[output.name])


@pytest.mark.parametrize("name", CASES)
def test_a_bad_pixel_changes_only_the_results_that_read_it(name: str) -> None:
    case, wanted = CASES[name]
    after = derive(case.graph(), Derivations(Only(wanted), growth=1e9))
    check_bad_pixels(case, run_of(after), 7 * sorted(CASES).index(name))


def test_a_bad_pixel_in_any_strip_of_a_symbolic_size_is_found() -> None:
    case, wanted = CASES["3 x 3, two tiles"]
    case = replace(case, sizes=(3, 41), images=1, channels=2)
    after = derive(replace(case, open=True).graph(), Derivations(Only(wanted), growth=1e9))
    for column in range(41):
        image = case.image(1)
        image[0, column % 2, 0, column] = 1e6  # results of the second row do not read it
        assert fails(after, image), column


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_images_without_bad_values_take_the_form(scale: float) -> None:
    case, wanted = CASES["5 x 5"]
    after = derive(case.graph(), Derivations(Only(wanted), growth=1e9))
    image = case.image(2) * np.float32(scale)
    assert not fails(after, image)
    image[:, :, 4:] = 0  # the black border of a photo
    assert not fails(after, image)
    assert not fails(after, np.zeros_like(image))


def test_the_border_of_a_region_of_bad_values_is_found() -> None:
    case, wanted = CASES["3 x 3, two tiles"]
    after = derive(case.graph(), Derivations(Only(wanted), growth=1e9))
    image, marks = case.image(2), np.zeros_like(case.image(2))
    image[:, :, 5:, :4], marks[:, :, 5:, :4] = -9999, 1
    assert fails(after, image)
    reading = case.sums(marks, np.ones_like(case.weights)) > 0
    exact, allowed = exact_and_allowed(case, np.where(marks > 0, np.float32(0), image))
    actual = run_of(after)(image)
    assert np.all((np.abs(actual - exact) <= 2 * allowed) | reading)


def test_a_value_among_zeros_leaves_other_results_zero() -> None:
    case, wanted = CASES["2 x 2"]
    after = derive(case.graph(), Derivations(Only(wanted), growth=1e9))
    image = np.zeros_like(case.image(2))
    image[0, :, 6, 5] = 3
    assert fails(after, image)
    bias = case.bias.reshape(-1, 1, 1)
    reading = case.sums(image, np.ones_like(case.weights)) != 0
    assert np.all((run_of(after)(image) == bias) | reading)


@pytest.mark.parametrize("name", ["3 x 3, two tiles", "stride 2, 4 x 4", "groups"])
def test_programs_branch_to_direct_sums(name: str) -> None:
    """The evaluators run the host program and its tile kernels."""
    case, wanted = CASES[name]
    after = derive(case.graph(), Derivations(Only(wanted), growth=1e9))
    program, kernels, weights = lowered(after, CoreModel(16, 16))
    assert sum(isinstance(instr, Branch) for instr in program.body) == 1

    def run(image: Array) -> Array:
        return np.asarray(evaluate_program(program, kernels, [image], weights)[0])

    exact, allowed = exact_and_allowed(case, case.image(2))
    assert np.all(np.abs(run(case.image(2)) - exact) <= allowed)
    image, reading = spoilt(case, np.nan, 3)
    exact, allowed = exact_and_allowed(case, np.where(np.isnan(image), np.float32(0), image))
    assert np.all((np.abs(run(image) - exact) <= 2 * allowed) | reading)


def test_targets_whose_forms_were_not_measured_take_none() -> None:
    case, wanted = CASES["3 x 3, two tiles"]
    graph = case.graph()
    assert derive(graph, Derivations(Only(wanted), growth=1e9, bilinear=False)) is graph
