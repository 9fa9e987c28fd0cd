"""Writes the table and the chart of `scripts/breadth` from outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from bench_table import aligned, speed_title
from chart import Bar, bar_chart
from goals import BASELINES, geometric_mean, ratio
from tcc.runtime.interleaved import best_ratio
from zoo.draw import FIXED, Candidates, Entry
from zoo.outcomes import Outcome, Outcomes

# The goals for each precision: (number of architectures, geometric mean of their ratios, ratio of
# each architecture). A measurement must reach or exceed each of the three.
GOALS = {"f32": (60, 1.3, 0.95), "bf16": (2, 1.15, 1.0)}
LOSES = 1.0  # for models with a smaller ratio, the table lists kernels

LEGEND = (
    "sizes: default configuration, batch 1, 128 tokens, images as in the configuration or image",
    "processor, sound as the extractor returns it; weights are seeded; if they exceed 1.2 GB,",
    "the layers and then the vocabulary are halved until the weights fit (cut)",
    "times: medians in ms; (best): best round of the same peer",
    "ratio: faster peer / tcc in the same round, median over rounds; best: ratio of best rounds",
    "fma: multiply-adds of contractions / f32 peak of all threads; error: difference from ONNX",
    "Runtime in f32, else from the first peer, / the output's largest value; scaled: layers whose",
    "weights (by a power of two) or statistics were set so that signals do not vanish",
)


def _head(precision: str) -> list[str]:
    time_columns = [column for kind in BASELINES[precision] for column in (kind, "(best)")]
    other_columns = "ratio best fma error scaled compiled cut".split()
    return ["model", "registry", "class", "MB", "tcc", *time_columns, *other_columns]


def collect(candidates: Candidates, outcomes: Outcomes) -> dict[str, Any]:
    """Returns as JSON everything that the table shows.

    The JSON has the members, the outcomes of their exports and timings, and all failed exports.
    """
    members = candidates.members(outcomes.failed_exports())
    families = {entry.family for entry in members}
    exports, times = outcomes.all("export"), outcomes.all("time")
    return {
        "precision": outcomes.precision,
        "seed": candidates.seed,
        "versions": dict(candidates.versions),
        "members": [asdict(entry) for entry in members],
        "exports": {
            family: outcome
            for family, outcome in exports.items()
            if family in families or outcome["outcome"] == "failed"
        },
        "times": {family: outcome for family, outcome in times.items() if family in families},
        "classes": {entry.family: entry.model for entry in candidates.entries()},
    }


def ratio_of(outcome: Outcome | None) -> float | None:
    """Returns the median over rounds of the fastest peer's time divided by tcc's.

    Returns None if the timing failed or no peer ran.
    """
    if outcome is None or outcome["outcome"] != "done":
        return None
    return ratio(outcome, BASELINES[outcome["plan"].get("precision", "f32")])


def ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Maps each timed family to its ratio (see `ratio_of`), the lowest ratio first."""
    maybe_ratios = {family: ratio_of(outcome) for family, outcome in results["times"].items()}
    by_family = {family: value for family, value in maybe_ratios.items() if value is not None}
    return dict(sorted(by_family.items(), key=lambda pair: (pair[1], pair[0])))


def goals(results: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Returns pairs (text of a goal, True if the results meet it)."""
    values = ratios(results)
    mean = geometric_mean(list(values.values())) if values else 0.0
    least_count, least_mean, least_ratio = GOALS[results["precision"]]
    low = [f"{family} {value:.2f}" for family, value in values.items() if value < least_ratio]
    families = [entry["family"] for entry in results["members"]]
    untimed = [family for family in families if family not in values]
    missing = [entry.family for entry in FIXED if entry.family not in families]
    return [
        (f"{len(values)} architectures timed, at least {least_count}", len(values) >= least_count),
        (f"geometric mean {mean:.2f}, at least {least_mean:.2f}", mean >= least_mean),
        (f"below {least_ratio:.2f}: {', '.join(low) or 'none'}", not low),
        (f"without a ratio: {', '.join(untimed) or 'none'}", not untimed),
        (f"fixed architectures not in the list: {', '.join(missing) or 'none'}", not missing),
    ]


def table(results: Mapping[str, Any]) -> str:
    """Returns the report as text."""
    family_ratios = ratios(results)
    members = [Entry(**entry) for entry in results["members"]]
    entries = [entry for entry in members if entry.family in family_ratios]
    entries.sort(key=lambda entry: family_ratios[entry.family])
    lines = [*_heading(results), "", *LEGEND, ""]
    rows = (_cells(results, entry) for entry in entries)
    lines += aligned([_head(results["precision"]), *rows], left_columns=3)
    lines += ["", *(f"{text}: {'met' if met else 'MISSED'}" for text, met in goals(results))]
    for title, section in (
        (
            f"kernels of those below {LOSES:.2f}, by time above the machine's limit",
            _losers(results),
        ),
        ("disturbed turns", _disturbances(results)),
        ("peers that failed", _absences(results)),
        ("models that tcc failed on", _failures(results["times"])),
        ("exports that failed, each replaced by the next of its registry", _exports(results)),
        ("left to do", _left(results)),
    ):
        body = list(section)
        lines += ["", f"{title}:", *(f"  {line}".rstrip() for line in body)] if body else []
    return "\n".join((*lines, ""))


def chart(results: Mapping[str, Any]) -> str:
    """Returns a chart of the families' ratios as SVG, the highest ratio first."""
    bars = [Bar(family, value, None) for family, value in reversed(ratios(results).items())]
    title = speed_title(BASELINES[results["precision"]])
    return bar_chart(title, f"{_conditions(results)}; longer is better", bars)


def _heading(results: Mapping[str, Any]) -> list[str]:
    libraries = " and ".join(f"{n} {v}" for n, v in results["versions"].items())
    origin = f"{len(results['members'])} architectures, drawn by seed {results['seed']} from"
    return [f"{origin} {libraries}", _conditions(results)]


def _conditions(results: Mapping[str, Any]) -> str:
    """Returns a text with the CPU, threads, precision, rounds and dates of the timings.

    It lists all values of a property in which timings differ.
    """
    rows = [row for row in results["times"].values() if row["outcome"] == "done"]
    facts = (
        [row["target"] for row in rows],
        [f"{row['plan']['threads']} threads" for row in rows],
        [results["precision"]],
        [f"{row['plan']['rounds']} rounds of {row['plan']['seconds']:g} s" for row in rows],
        [f"{row['date']} at {row.get('commit', 'an unknown commit')}" for row in rows],
    )
    return "; ".join(" and ".join(sorted(set(values))) for values in facts if values)


def _cells(results: Mapping[str, Any], entry: Entry) -> list[str]:
    row, export = results["times"][entry.family], results["exports"].get(entry.family, {})
    peers, kinds = row["peers"], BASELINES[results["precision"]]
    best = ratio(row, kinds, best_ratio)
    value = ratio_of(row)
    fma = row["contraction_flops"] / peers["tcc"]["median"] / row["peaks"]["flops"][1]
    time_cells = [_ms(peers.get(k, {}), key) for k in kinds for key in ("median", "best")]
    return [
        entry.family,
        entry.registry,
        entry.model + (f".{entry.part}" if entry.part else ""),
        f"{export['weights'] / 1e6:.0f}" if "weights" in export else "-",
        _ms(peers["tcc"], "median"),
        *time_cells,
        "-" if value is None else f"{value:.2f}",
        "-" if best is None else f"{best:.2f}",
        f"{fma:.0%}",
        "-" if row["error"] is None else f"{row['error']:.0e}",
        str(export.get("scaled", "-")),
        f"{row['compile_seconds']:.0f} s",
        export.get("cut") or "-",
    ]


def _ms(times: Mapping[str, Any], key: str) -> str:
    return f"{times[key] * 1e3:.2f}" if key in times else "-"


def _losers(results: Mapping[str, Any]) -> Iterator[str]:
    for family, value in ratios(results).items():
        if value >= LOSES:
            return
        row = results["times"][family]
        yield f"{family} {value:.2f}"
        rows = [("kernel", "launches", "ms", "of the run", "of limit", "source")]
        rows += [_kernel(kernel, row["kernel_seconds"]) for kernel in row["kernels"]]
        yield from (f"  {line}" for line in aligned(rows))


def _kernel(kernel: Mapping[str, Any], seconds: float) -> tuple[str, ...]:
    measured = kernel["measured"] or 0.0
    share = "-" if kernel["share"] is None else f"{kernel['share']:.0%} {kernel['bound']}"
    return (
        kernel["name"],
        str(kernel["launches"]),
        f"{measured * 1e3:.3f}",
        f"{measured / seconds:.0%}" if seconds else "-",
        share,
        kernel["source"][:80],
    )


def _disturbances(results: Mapping[str, Any]) -> Iterator[str]:
    for family, row in results["times"].items():
        count = sum(peer.get("disturbed", 0) for peer in row.get("peers", {}).values())
        if count:
            yield f"{family} {count}"


def _absences(results: Mapping[str, Any]) -> Iterator[str]:
    for family, row in results["times"].items():
        for kind, peer in row.get("peers", {}).items():
            if "absent" in peer:
                yield f"{family}: {kind}: {peer['absent']}"


def _failures(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    for family, outcome in outcomes.items():
        if outcome["outcome"] == "failed":
            yield f"{family}: {outcome['why']}"


def _exports(results: Mapping[str, Any]) -> Iterator[str]:
    for family, outcome in results["exports"].items():
        if outcome["outcome"] == "failed":
            yield f"{family} ({results['classes'].get(family, '-')}): {outcome['why']}"


def _left(results: Mapping[str, Any]) -> Iterator[str]:
    families = [entry["family"] for entry in results["members"]]
    for title, outcomes in (("export", results["exports"]), ("time", results["times"])):
        missing = [family for family in families if family not in outcomes]
        if missing:
            yield f"{title}: {', '.join(missing)}"
