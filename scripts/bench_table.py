"""Formats the results of `scripts/bench` as text and as a chart."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chart import Bar, bar_chart
from goals import (
    BASELINES,
    GoalVerdict,
    goal_ratio,
    judge,
    ratio,
    stream_share,
    suite_of,
    wanted_ratio,
)
from tcc.cli.peers.peer import PEERS
from tcc.runtime.interleaved import best_ratio

# The peer that is tcc without derivations.
UNDERIVED = "no-derive"
LEGEND = (
    "times: medians in ms; (best): best round of the same peer",
    "ratio: faster baseline / tcc in the same round, median over rounds; the goals use this ratio",
    "best: best round of the faster baseline / best round of tcc",
    "runs: kernel launches in one run; MB: memory traffic of a run; unfused: a kernel per node",
    "fma, read: rates of multiply-adds and of weight bytes / the peak rates of all threads",
)
DERIVED = "derived: time without derivations / time with them in the same round, median over rounds"


def heading(results: Mapping[str, Any]) -> str:
    return (
        f"{results['target']}, {results['threads']} threads, {results['precision']}, "
        f"batch {results['batch']}, {results['rounds']} rounds, {results['date']}"
    )


def columns(results: Mapping[str, Any]) -> list[str]:
    """Returns the headings of the table's columns."""
    cells = ["model", "tcc"]
    for kind in results["peers"]:
        cells += [kind, "(best)"] if kind in BASELINES[results["precision"]] else [kind]
    cells += ["derived"] if UNDERIVED in results["peers"] else []
    return [*cells, *"ratio best goal runs MB unfused fma read".split()]


def cells(results: Mapping[str, Any], model: str) -> list[str]:
    """Returns the row of a model."""
    row = results["models"][model]
    peers, kinds = row["peers"], BASELINES[results["precision"]]
    texts = [model, _ms(peers["tcc"], "median")]
    for kind in results["peers"]:
        texts.append(_ms(peers[kind], "median"))
        if kind in kinds:
            texts.append(_ms(peers[kind], "best"))
    if UNDERIVED in results["peers"]:
        texts.append(_number(ratio(row, (UNDERIVED,))))
    goal = wanted_ratio(suite_of(results), model)
    flops = row["flops"] / peers["tcc"]["median"] / row["peaks"]["flops"][1]
    traffic = row["traffic"] or {}
    return [
        *texts,
        _number(goal_ratio(results, model)),
        _number(ratio(row, kinds, best_ratio)),
        _goal(goal, goal_ratio(results, model)),
        str(traffic.get("launches", "-")),
        _megabytes(traffic.get("bytes")),
        _megabytes(traffic.get("unfused")),
        _percent(flops),
        _percent(stream_share(row)),
    ]


def table(results: Mapping[str, Any]) -> str:
    """Returns the complete report as text."""
    rows = [columns(results), *(cells(results, model) for model in results["models"])]
    legend = (*LEGEND, *[DERIVED] * (UNDERIVED in results["peers"]))
    lines = [heading(results), *_lacks(results), *legend, "", *aligned(rows), ""]
    lines += [_peaks_line(results), *_disturbances(results), *_absences(results), ""]
    verdicts = list(judge(results))
    if verdicts:
        listed = [["goal", "model", "bar", "value", ""], *map(_verdict_cells, verdicts)]
        lines += aligned(listed, left_columns=2)
        met = sum(verdict.met for verdict in verdicts)
        lines.append(f"{met} of {len(verdicts)} goals met")
    return "\n".join((*lines, ""))


def _lacks(results: Mapping[str, Any]) -> list[str]:
    """Returns the line about instructions that the CPU lacks, if the results have it."""
    return [f"the processor does not have: {results['lacks']}"] if "lacks" in results else []


def speed_title(kinds: Sequence[str]) -> str:
    """Returns the title of a chart of ratios, the time of the fastest of these peers over tcc's."""
    names = [PEERS[kind].title.split(",")[0] for kind in kinds]
    peers = f"the faster of {' and '.join(names)}" if len(names) > 1 else names[0]
    return f"tcc is this many times as fast as {peers}"


def chart(results: Mapping[str, Any]) -> str:
    """Returns a chart of the ratios as SVG."""
    suite = suite_of(results)
    bars = [Bar(m, goal_ratio(results, m), wanted_ratio(suite, m)) for m in results["models"]]
    title = speed_title(BASELINES[results["precision"]])
    return bar_chart(title, heading(results) + "; longer is better; dashed: goals", bars)


def aligned(rows: Sequence[Sequence[str]], left_columns: int = 1) -> Iterator[str]:
    """Yields rows as lines; the first `left_columns` columns are flush left, the others flush
    right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = (
            f"{text:<{width}}" if number < left_columns else f"{text:>{width}}"
            for number, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(texts).rstrip()


def _verdict_cells(verdict: GoalVerdict) -> list[str]:
    return [
        verdict.what,
        verdict.model,
        f"{verdict.goal:.2f}",
        _number(verdict.value),
        verdict.text,
    ]


def _peaks_line(results: Mapping[str, Any]) -> str:
    peaks = [row["peaks"] for row in results["models"].values()]
    texts = []
    for name, rate_unit in (("flops", "GF/s"), ("read", "GB/s")):
        for index, who in ((0, "one thread"), (1, "all")):
            values = [peak[name][index] / 1e9 for peak in peaks]
            texts.append(f"{who} {min(values):.0f} to {max(values):.0f} {rate_unit}")
    return f"measured: multiply-add {', '.join(texts[:2])}; read {', '.join(texts[2:])}"


def _disturbances(results: Mapping[str, Any]) -> list[str]:
    """Returns a line with the number of turns that each model spent on a disturbed machine.

    Returns [] if there were none.
    """
    counts = {
        model: sum(peer.get("disturbed", 0) for peer in row["peers"].values())
        for model, row in results["models"].items()
    }
    listed = ", ".join(f"{model} {count}" for model, count in counts.items() if count)
    return [f"measurements on a disturbed machine: {listed}"] if listed else []


def _absences(results: Mapping[str, Any]) -> list[str]:
    """Returns the reasons why peers have no times, each reason once."""
    reasons: dict[str, list[str]] = {}
    for model, row in results["models"].items():
        for kind, peer in row["peers"].items():
            if "absent" in peer:
                reasons.setdefault(f"{kind}: {peer['absent']}", []).append(model)
    everywhere = len(results["models"])
    return [
        reason if len(models) == everywhere else f"{reason} ({', '.join(models)})"
        for reason, models in reasons.items()
    ]


def _ms(peer: Mapping[str, Any], key: str) -> str:
    return f"{peer[key] * 1e3:.3f}" if key in peer else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _megabytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.1f}"


def _goal(goal: float | None, value: float | None) -> str:
    if goal is None or value is None:
        return "-"
    return f"{goal:.2f} {'met' if value >= goal else 'missed'}"
