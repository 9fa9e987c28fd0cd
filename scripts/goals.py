"""The goals of tcc as data, and the decision which of them results reach.

A ratio is the median over rounds of the time of the faster baseline over tcc's time in the same
round. Above 1, tcc is faster. `judge` reads the bench*.json files that `scripts/bench` writes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from tcc.runtime.interleaved import paired_ratio

# A function of tcc's rounds and the peers' rounds: `paired_ratio` or `best_ratio`.
Ratio: TypeAlias = Callable[[Sequence[float], Sequence[Sequence[float]]], float]

BASELINES = MappingProxyType({"f32": ("ort", "openvino"), "bf16": ("openvino-bf16",)})

_MEAN_OVER = (
    "resnet50", "mobilenet_v2", "unet", "csrnet", "fsrcnn", "infogan", "lstm", "bert_base",
    "gpt2_prefill", "vit_b16",
)  # fmt: skip
_RATIOS = MappingProxyType(
    {
        "csrnet": 2.2,
        "unet": 2.2,
        "fsrcnn": 2.5,
        "lstm": 1.3,
        "infogan": 1.25,
        "resnet50": 1.2,
        "mobilenet_v2": 1.2,
        "bert_base": 1.05,
        "gpt2_prefill": 1.05,
        "vit_b16": 1.05,
        "llama_prefill": 1.0,
        "llama_decode": 1.2,
    }
)


@dataclass(frozen=True, slots=True)
class Suite:
    """The goals for one precision and batch.

    A model's ratio is the faster baseline's time over tcc's. `ratios` maps a model to the ratio
    that it must reach. All other models must reach the ratio `other`. The geometric mean of the
    ratios of the models `mean_over` (empty: all models) must reach `mean`. `streams` are pairs
    (model, share): tcc must read the model's weights with this share of the measured read
    bandwidth. None means no goal.
    """

    ratios: Mapping[str, float]
    other: float | None = None
    mean: float | None = None
    mean_over: tuple[str, ...] = ()
    streams: tuple[tuple[str, float], ...] = ()


SUITES = MappingProxyType(
    {
        ("f32", 1): Suite(_RATIOS, None, 1.5, _MEAN_OVER, (("gpt2_decode", 0.85),)),
        ("bf16", 1): Suite(MappingProxyType({}), 1.0, 1.15),
        ("f32", 8): Suite(
            MappingProxyType({"resnet50": 1.0, "mobilenet_v2": 1.0, "bert_base": 1.0})
        ),
    }
)
NO_GOALS = Suite(MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class GoalVerdict:
    """A goal for a model, and the measured value: None if the model or a peer was not measured."""

    model: str
    what: str
    goal: float
    value: float | None

    @property
    def met(self) -> bool:
        return self.value is not None and self.value >= self.goal

    @property
    def text(self) -> str:
        if self.value is None:
            return "unknown"
        return "met" if self.met else "MISSED"


def suite_of(results: Mapping[str, Any]) -> Suite:
    return SUITES.get((results["precision"], results["batch"]), NO_GOALS)


def wanted_ratio(suite: Suite, model: str) -> float | None:
    return suite.ratios.get(model, suite.other)


def ratio(row: Mapping[str, Any], kinds: tuple[str, ...], of: Ratio = paired_ratio) -> float | None:
    """Returns the time of the faster peer over tcc's time, as the function `of` computes it.

    `row` has a model's results, and `kinds` names the peers. Peers that did not run are left out;
    returns None if no peer ran.
    """
    peers = [row["peers"].get(kind, {}) for kind in kinds]
    rounds = [peer["rounds"] for peer in peers if "rounds" in peer]
    return of(row["peers"]["tcc"]["rounds"], rounds) if rounds else None


def goal_ratio(results: Mapping[str, Any], model: str) -> float | None:
    """Returns the ratio over all BASELINES, to which goals refer; None if one did not run."""
    row = results["models"][model]
    kinds = BASELINES[results["precision"]]
    if not all("rounds" in row["peers"].get(kind, {}) for kind in kinds):
        return None
    return ratio(row, kinds)


def stream_share(row: Mapping[str, Any]) -> float | None:
    """Returns the rate at which tcc reads the weights, as a share of the measured read bandwidth.

    The rate is the weights' bytes over tcc's median time; the bandwidth is of all threads.
    """
    if row["traffic"] is None:
        return None
    rate = row["traffic"]["weights"] / row["peers"]["tcc"]["median"]
    return float(rate / row["peaks"]["read"][1])


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(results: Mapping[str, Any]) -> Iterator[GoalVerdict]:
    """Yields a verdict for every goal whose models are all among the results."""
    suite, rows = suite_of(results), results["models"]
    for model, row in rows.items():
        goal = wanted_ratio(suite, model)
        if goal is not None:
            yield GoalVerdict(model, "ratio", goal, goal_ratio(results, model))
        for name, share in suite.streams:
            if name == model:
                yield GoalVerdict(model, "weights over read bandwidth", share, stream_share(row))
    over = suite.mean_over or tuple(rows)
    if suite.mean is not None and over and all(model in rows for model in over):
        ratios = [goal_ratio(results, model) for model in over]
        measured_ratios = [value for value in ratios if value is not None]
        mean = geometric_mean(measured_ratios) if len(measured_ratios) == len(over) else None
        yield GoalVerdict(f"{len(over)} models", "geometric mean of ratios", suite.mean, mean)
