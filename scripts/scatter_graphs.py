"""The graphs of `scripts/scatter`, their expected results, and their times."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from bench_table import aligned
from beside import Arrays, PairSettings, beside
from environment import ROOT
from goals import geometric_mean
from processor import processor_line
from subgraph.writer import DrawnGraph, GraphWriter, ValueDraw, drawn, model_of
from tcc.options import Options
from tcc.runtime.interleaved import best_ratio, paired_ratio
from tcc.variants import resolve_targets
from whole import write_whole

TABLE = ROOT / "scripts" / "results" / "scatter.txt"
_MIN_RATIO = 0.95
_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True, slots=True)
class ScatterGraph:
    """A graph that scatters `updates` rows of `width` elements into an array of `rows` rows.

    `form` is "bag" (the updates are rows of a table, read by a Gather), "nd" (ScatterND),
    "elements" (ScatterElements along axis 0) or "lines" (ScatterElements along axis 1). `draw`
    names the distribution of the target rows, as in `subgraph.writer.ValueDraw`. `reduction`
    combines updates with the same target.
    """

    form: str
    updates: int
    rows: int
    width: int
    draw: str = "below"
    reduction: str = "add"
    dtype: str = "float32"

    @property
    def name(self) -> str:
        sizes = f"{self.updates} to {self.rows} x {self.width}"
        return f"{self.form}, {self.reduction}, {sizes}, {self.draw}, {self.dtype}"

    def graph(self) -> DrawnGraph:
        w, draw = GraphWriter(), ValueDraw(self.draw, self.rows)
        shape = (self.rows,) if self.width == 1 and self.form == "elements" else self._shape
        values = (
            ValueDraw("uniform", 0.99, 1.01)
            if self.reduction == "mul"
            else ValueDraw("steps", 0.125)
        )
        start = np.full(shape, 1 if self.reduction in ("mul", "min") else 0)
        start_name = w.constant(start, self.dtype)
        if self.form in ("bag", "nd"):
            where = w.input("where", self.updates, 1, dtype="int64", draw=draw)
            return w.graph(
                w.op("ScatterND", start_name, where, self._updates(w, values),
                     reduction=self.reduction)
            )  # fmt: skip
        axis = int(self.form == "lines")
        count = (self.updates, *shape[1:]) if not axis else (shape[0], self.updates)
        where = w.input("where", *count, dtype="int64", draw=ValueDraw(self.draw, shape[axis]))
        updates = w.input("updates", *count, dtype=self.dtype, draw=values)
        return w.graph(
            w.op("ScatterElements", start_name, where, updates, axis=axis,
                 reduction=self.reduction)
        )  # fmt: skip

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.width, self.rows) if self.form == "lines" else (self.rows, self.width)

    def _updates(self, w: GraphWriter, values: ValueDraw) -> str:
        if self.form == "nd":
            return w.input("updates", self.updates, self.width, dtype=self.dtype, draw=values)
        table = w.weight("table", 50_000, self.width, draw=values)
        return w.op("Gather", table, w.input("ids", self.updates, dtype="int64",
                                             draw=ValueDraw("below", 50_000)))  # fmt: skip

    def expected(self, feed: Arrays) -> np.ndarray:
        """Returns the graph's result as NumPy computes it in float64 or int64, for inputs `feed`.

        The updates are combined one after another.
        """
        graph = self.graph()
        start = graph.constants["c0"]
        y = start.astype(np.int64 if start.dtype.kind == "i" else np.float64)
        if self.form == "bag":
            updates = drawn(self.name, graph.weights)["table"][feed["ids"]]
        else:
            updates = feed["updates"]
        ufunc = _UFUNCS[self.reduction]
        if self.form in ("bag", "nd"):
            ufunc.at(y, feed["where"][:, 0], updates)
        elif self.form == "elements":
            ufunc.at(y, (feed["where"], *np.indices(feed["where"].shape)[1:]), updates)
        else:
            ufunc.at(y, (np.indices(feed["where"].shape)[0], feed["where"]), updates)
        return y


SCATTERS: tuple[ScatterGraph, ...] = (
    ScatterGraph("bag", 1, 1, 64),
    ScatterGraph("bag", 1000, 100, 64, "rising"),
    ScatterGraph("bag", 20_480, 2048, 128, "rising"),
    ScatterGraph("bag", 100_000, 1000, 32),
    ScatterGraph("bag", 100_000, 10_000, 256, "skewed"),
    ScatterGraph("bag", 1_000_000, 10_000, 16, "skewed"),
    ScatterGraph("bag", 200_000, 50_000, 1, "rising"),
    ScatterGraph("nd", 1, 1_000_000, 1),
    ScatterGraph("nd", 1_000_000, 1_000_000, 1),
    ScatterGraph("nd", 1_000_000, 1000, 1, "skewed"),
    ScatterGraph("nd", 100_000, 100_000, 16),
    ScatterGraph("nd", 10_000, 1_000_000, 8),
    ScatterGraph("nd", 100_000, 10_000, 64, "skewed", "max"),
    ScatterGraph("nd", 10_000, 1000, 32, "below", "mul"),
    ScatterGraph("nd", 100_000, 100, 256, "skewed", "min"),
    ScatterGraph("nd", 1_000_000, 100_000, 1, "skewed", "add", "int64"),
    ScatterGraph("elements", 1_000_000, 1_000_000, 1),
    ScatterGraph("elements", 1_000_000, 10_000, 1, "skewed", "max"),
    ScatterGraph("elements", 100_000, 10_000, 16),
    ScatterGraph("elements", 1000, 100, 256, "skewed"),
    ScatterGraph("lines", 4096, 1024, 256),
    ScatterGraph("elements", 200_000, 1000, 1, "below", "add", "int64"),
    ScatterGraph("nd", 50_000, 5000, 8, "below", "add", "float64"),
    ScatterGraph("elements", 17, 5, 3, "below", "mul"),
    ScatterGraph("nd", 100_000, 10_000, 64, "skewed"),
    ScatterGraph("nd", 100_000, 1000, 256),
    ScatterGraph("elements", 1_000_000, 1000, 1, "skewed", "min"),
)


@dataclass(frozen=True, slots=True)
class ScatterRow:
    """A timed graph.

    `tcc` and `ort` are the median seconds of the two runtimes. `ratio` is the median over rounds of
    ONNX Runtime's time over tcc's. `best` is ONNX Runtime's time in its best round over tcc's time
    in its best round.
    """

    name: str
    tcc: float
    ort: float
    ratio: float
    best: float

    @property
    def cells(self) -> tuple[str, ...]:
        times = (f"{seconds * 1e3:.4f}" for seconds in (self.tcc, self.ort))
        miss = "below" if self.ratio < _MIN_RATIO else ""
        return self.name, *times, f"{self.ratio:.2f}", f"{self.best:.2f}", miss


class Differs(Exception):
    """Raised if tcc's result of a graph differs from NumPy's."""


def measure(scatter: ScatterGraph, folder: Path, plan: PairSettings) -> ScatterRow:
    """Compiles, compares and times a graph, and returns its row; raises `Differs` for a wrong
    result."""
    graph, name = scatter.graph(), scatter.name
    model, artifact = folder / "model.onnx", folder / "model.so"
    onnx.save(model_of(name, graph), model)
    feed = drawn(name, graph.inputs)
    command = [sys.executable, "-m", "tcc", "compile", str(model), "-o", str(artifact)]
    subprocess.run(command, check=True, capture_output=True)
    expected = scatter.expected(feed)
    tolerance = 1e-5 * max(float(np.abs(expected).max(initial=0)), 1.0)

    def see(outputs: Sequence[Arrays]) -> None:
        (result,) = outputs[0].values()
        if not np.allclose(result, expected, rtol=1e-5, atol=tolerance):
            raise Differs(f"{name}: tcc's result differs from NumPy's")

    times = beside(artifact, model, feed, plan, see=see)
    rounds = times["tcc"].rounds, [times["ort"].rounds]
    ratios = paired_ratio(*rounds), best_ratio(*rounds)
    return ScatterRow(name, times["tcc"].median, times["ort"].median, *ratios)


def table(rows: Sequence[ScatterRow], plan: PairSettings) -> str:
    """Returns the rows for one number of threads as text."""
    name = "graph: updates to rows x width, indices, dtype"
    head = (name, "tcc ms", "ort ms", "ratio", "best", "")
    below = sum(row.ratio < _MIN_RATIO for row in rows)
    mean = geometric_mean([row.ratio for row in rows])
    return "\n".join(
        (
            f"threads: {plan.threads}, {plan.rounds} rounds; geometric mean {mean:.2f}; "
            f"{below} of {len(rows)} below {_MIN_RATIO}",
            "",
            *aligned([head, *(row.cells for row in rows)]),
            "",
        )
    )


def _head() -> str:
    (target,) = resolve_targets(Options())
    return (
        f"Generated by `scripts/scatter`: {processor_line(target)}.\n"
        "A ratio is the median over rounds of ONNX Runtime's time / tcc's time; best: ratio of the "
        "best rounds.\n\n"
    )


def _rows(scatters: Iterable[ScatterGraph], plan: PairSettings) -> tuple[list[ScatterRow], bool]:
    """Times and prints the graphs; returns (their rows, True if any result is wrong)."""
    rows: list[ScatterRow] = []
    differs = False
    for scatter in scatters:
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows.append(measure(scatter, Path(folder), plan))
            except Differs as problem:
                print(problem, flush=True)
                differs = True
                continue
        print("  ".join((str(plan.threads), *rows[-1].cells)), flush=True)
    return rows, differs


def main(page: str) -> int:
    """Runs the command whose help is `page`; returns its exit code."""
    arguments = _parse(page)
    scatters = [s for s in SCATTERS if arguments.only.search(s.name)]
    text, bad, count = _head(), not scatters, 0
    for threads in sorted(set(arguments.threads)):
        plan = PairSettings(threads, arguments.rounds, arguments.seconds)
        rows, differs = _rows(scatters, plan)
        bad |= differs or any(row.ratio < _MIN_RATIO for row in rows)
        count += len(rows) == len(SCATTERS)
        text += table(rows, plan) + "\n" if rows else ""
    print(f"\n{text}", end="")
    if count > 1:
        write_whole(TABLE, text.rstrip("\n") + "\n")
    return int(bad)


def _parse(page: str) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=page, formatter_class=raw)
    add = parser.add_argument
    add("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="graphs by name")
    cores = len(os.sched_getaffinity(0))
    add("--threads", type=int, nargs="+", default=[1, cores], help="default: 1 and all cores")
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=0.2, help="of one runtime in one round; default: 0.2")
    return parser.parse_args()
