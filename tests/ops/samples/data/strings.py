"""Samples of the ops of `tcc.ops.data.strings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from tcc.ir.index import const
from tcc.ir.op import NoAttrs
from tcc.ir.types import F32, I64
from tcc.ops.data.strings import (
    StringCaseAttrs,
    StringDecodeAttrs,
    StringMatchAttrs,
    StringParseAttrs,
    StringRemoveAttrs,
    StringSplitAttrs,
    strings,
)

from tests.ops.samples.sampling import Sample, Samples


def _concat_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x, y = strings([["a", ""], ["bc", "é"]]), strings([["x", "y"], ["", "日本"]])
    yield Sample((x, y), NoAttrs(), "matrix")
    yield Sample((strings("a"), strings("b")), NoAttrs(), "scalar")


def _split_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x = strings(["a.b.c", "", ".", "x..y"])
    yield Sample((x,), StringSplitAttrs(".", -1, const(3)), "dots")
    yield Sample((x,), StringSplitAttrs(".", 1, const(2)), "once")
    yield Sample((strings([" a  b ", "c"]),), StringSplitAttrs("", -1, const(2)), "spaces")


def _case_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x = strings(["Monday", "ÉCOLE straße", "ΑΣ", "", "İ"])
    yield Sample((x,), StringCaseAttrs(False), "lower")
    yield Sample((x,), StringCaseAttrs(True), "upper")


def _remove_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x, key = strings(["A", "b", "C"]), strings(["a", "b", "c"])
    yield Sample((x, key, strings(["c"])), StringRemoveAttrs(const(2)), "one")
    yield Sample((x, key, strings(["c", "b", "a"])), StringRemoveAttrs(const(1)), "all")


def _match_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x = strings([["www.a.com", "ftp.a"], ["www.a-b.com", ""]])
    yield Sample((x,), StringMatchAttrs(r"www\.[\w.-]+\.com"), "matrix")
    yield Sample((strings([]),), StringMatchAttrs("a*"), "none")


def _rank_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((strings([["b", "a"], ["é", "b"]]),), NoAttrs(), "matrix")


def _format_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x = np.array([0.1, 1.0, -2.5e-7, 3e38, np.nan, np.inf, -np.inf, -0.0], np.float32)
    yield Sample((x,), NoAttrs(), "f32")
    yield Sample((x.astype(np.float64) / 3,), NoAttrs(), "f64")
    yield Sample((np.array([-5, 0, 1 << 62]),), NoAttrs(), "i64")
    yield Sample((np.array([True, False]),), NoAttrs(), "bool")


def _parse_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    x = strings(["1", "-2.5", "1e-5", "1E8", "inf", "NaN", ".5", "+3."])
    yield Sample((x,), StringParseAttrs(F32), "f32")
    yield Sample((strings(["12", "-7"]),), StringParseAttrs(I64), "i64")


def _decode_samples(_rng: np.random.Generator) -> Iterator[Sample]:
    data = np.frombuffer("aéb".encode(), np.uint8)
    yield Sample((data, np.array([1, 3, 3, 4])), StringDecodeAttrs((const(2), const(2))), "matrix")


SAMPLES: Mapping[str, Samples] = {
    "string_concat": _concat_samples,
    "string_split": _split_samples,
    "string_case": _case_samples,
    "string_remove": _remove_samples,
    "string_match": _match_samples,
    "string_rank": _rank_samples,
    "string_format": _format_samples,
    "string_parse": _parse_samples,
    "string_decode": _decode_samples,
}
