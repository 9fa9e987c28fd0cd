"""Attention of one row of queries over a long cache, in parts that threads share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
from tcc.driver import model_choices
from tcc.options import Options
from torch.nn.functional import scaled_dot_product_attention

from tests.closeness import assert_within

LENGTHS = 1, 2, 100, 511, 1500
CPU = "x86-64-v3"


class Attention(torch.nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor | None = None
    ) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, b, scale=0.25, enable_gqa=True)


@dataclass(frozen=True)
class Case:
    """`group` query heads share each of `heads` key heads of `width`."""

    heads: int = 1
    group: int = 8
    width: int = 64
    batch: int = 1
    masked: bool = False
    precision: str = "f32"

    def save(self, path: Path, typical: int = 1024) -> None:
        """Writes a program with attention of one row over n keys, typically `typical`."""
        arrays = {name: torch.from_numpy(a) for name, a in self.inputs(typical).items()}
        n = torch.export.Dim("n", min=1)
        sizes = {"q": None, "k": {2: n}, "v": {2: n}, "b": {3: n}}
        shapes = {name: sizes[name] for name in arrays}
        program = torch.export.export(
            Attention(), tuple(arrays.values()), dynamic_shapes=shapes, strict=False
        )
        torch.export.save(program, path)

    def inputs(self, keys: int) -> dict[str, Any]:
        rng, heads = np.random.default_rng(keys), self.heads * self.group
        cache = (self.batch, self.heads, keys, self.width)
        arrays: dict[str, Any] = {
            "q": rng.standard_normal((self.batch, heads, 1, self.width), np.float32),
            "k": rng.standard_normal(cache, np.float32),
            "v": rng.standard_normal(cache, np.float32),
        }
        if self.masked:  # a window of the last 300 keys hides the first parts
            hidden = np.arange(keys) < keys - 300
            arrays["b"] = np.where(hidden, -np.inf, 0).astype(np.float32)[None, None, None]
        return arrays

    def expected(self, arrays: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the result in float64, and the weighted sums of the values' magnitudes."""
        narrow = self.precision == "bf16"
        q, k, v = (_rounded(arrays[n]) if narrow else arrays[n].astype(np.float64) for n in "qkv")
        k, v = (np.repeat(x, self.group, axis=1) for x in (k, v))
        s = q @ k.swapaxes(2, 3) * 0.25
        s = s + arrays["b"] if self.masked else s
        e = np.exp(s - s.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        return p @ v, p @ np.abs(v)


def _rounded(x: Any) -> Any:
    """Returns f32 numbers rounded to bf16, as float64."""
    bits = x.view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


CASES = {
    "plain": Case(),
    "40 wide": Case(group=4, width=40),
    "80 wide, masked": Case(group=2, width=80, masked=True),
    "112 wide, two key heads": Case(heads=2, group=3, width=112),
    "batch": Case(batch=2, heads=2, group=1, width=16),
    "bf16": Case(precision="bf16"),
}


def _decision(path: Path, options: Options) -> Any:
    """Returns the decision about parts of the attention."""
    decisions = model_choices(path, options).decisions()
    (decision,) = (d for d in decisions if d.site.kind == "parts")
    return decision


@pytest.mark.parametrize("name", CASES)
def test_parts_equal_float64_for_any_length_and_number_of_threads(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    path = tmp_path / "model.pt2"
    case.save(path)
    decision = _decision(path, Options(target="cpu", cpu=CPU, precision=case.precision))
    choices = tmp_path / "choices.jsonl"
    line = {"site": decision.site.text, "alternative": "parts-of-256"}
    choices.write_text(json.dumps(line) + "\n", encoding="utf-8")
    module = tcc.compile(path, jobs=1, choices=choices, cpu=CPU, precision=case.precision)
    module.save(tmp_path / "model.so")
    modules = [tcc.load(tmp_path / "model.so", threads=n) for n in (1, 2, 4)]
    for keys in LENGTHS:
        arrays = case.inputs(keys)
        results = [next(iter(module.run(arrays).values())) for module in modules]
        reference, size = case.expected(arrays)
        assert_within(results[0], reference, (2e-2 if case.precision == "bf16" else 2e-6) * size)
        assert all(np.array_equal(results[0], other) for other in results[1:])


def test_a_cache_is_in_parts_where_few_heads_leave_threads_idle(tmp_path: Path) -> None:
    """Prices choose parts for one key head and many keys, and not for many heads."""
    path = tmp_path / "model.pt2"
    for heads, typical, parts in ((1, 2048, True), (8, 2048, False)):
        Case(heads=heads).save(path, typical)
        decision = _decision(path, Options(target="cpu", cpu=CPU))
        assert decision.choice.text.startswith("parts-of-") == parts, (heads, typical)
