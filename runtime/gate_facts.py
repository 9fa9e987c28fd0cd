"""Facts of two artifacts of a model that need no measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcc.runtime.reports import InputError

# Facts that must not grow: distinct kernels, bytes of the arena, the weights and the machine code,
# bytes that the kernels of a run read and write, and the predicted seconds of a run.
FACTS = ("kernels", "arena", "weights", "bytes", "traffic", "time")
_PORTS = ("inputs", "outputs")


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact of two artifacts.

    `name` is one of FACTS.  `variant` is the target of the variant; "" for a fact of the file or of
    its only variant.  `why` says why `base` and `new` are not compared, and then they may be NaN.
    It is "" if they are compared.
    """

    name: str
    variant: str
    base: float
    new: float
    why: str = ""

    @property
    def label(self) -> str:
        """Returns the name, with the variant if there is one."""
        return f"{self.name} of {self.variant}" if self.variant else self.name

    @property
    def grows(self) -> bool:
        """Returns True if the two are compared and the new artifact has more."""
        return not self.why and self.new > self.base


@dataclass(frozen=True, slots=True)
class ArtifactSide:
    """An artifact: its file, its manifest, the bytes of its machine code, and the launches of each
    variant, as pairs (bytes that the kernel reads and writes, predicted seconds)."""

    path: Path
    manifest: Mapping[str, Any]
    code_bytes: int
    launches: Sequence[Sequence[tuple[int, float]]]

    @property
    def ports(self) -> list[str]:
        """Returns the names, types and shapes of the inputs and the outputs."""
        ports = (port for kind in _PORTS for port in self.manifest[kind])
        return [f"{port['name']}: {port['dtype']}{port['text']}" for port in ports]

    @property
    def targets(self) -> list[str]:
        """Returns the targets of the variants."""
        return [str(variant["target"]) for variant in self.manifest["variants"]]


def artifact_facts(base: ArtifactSide, new: ArtifactSide) -> Iterator[Fact]:
    """Yields the facts of two artifacts.

    Raises InputError if they have other ports or other targets, and LookupError, TypeError or
    ValueError for a manifest that lacks facts.
    """
    _check_equal("inputs or outputs", new.path, new.ports, base.path, base.ports)
    _check_equal("targets", new.path, new.targets, base.path, base.targets)
    old_weights, weights = (float(s.manifest["weights"]["bytes"]) for s in (base, new))
    yield Fact("weights", "", old_weights, weights)
    yield Fact("bytes", "", base.code_bytes, new.code_bytes)
    for number, target in enumerate(base.targets):
        name = target if len(base.targets) > 1 else ""
        yield from _variant_facts(name, *(_numbers(side, number) for side in (base, new)))


def _check_equal(
    noun: str, path: Path, texts: Sequence[str], base: Path, base_texts: Sequence[str]
) -> None:
    if texts != base_texts:
        raise InputError(
            f"the artifacts have other {noun}",
            where=str(path),
            why=f"it has {', '.join(texts)}; {base} has {', '.join(base_texts)}",
            hint="compare artifacts of one model, compiled with the same options",
        )


def _numbers(side: ArtifactSide, number: int) -> dict[str, Any]:
    """Returns the numbers of a variant by name; NaN for one that depends on symbolic sizes.

    `launched` has the bytes of all launches at typical sizes, where loops count once.  `machine`
    identifies the machine whose numbers priced the kernels.
    """
    variant, launches = side.manifest["variants"][number], side.launches[number]
    traffic, arena = variant["traffic"], variant["arena_bytes"]
    return {
        "kernels": float(variant["kernel_count"]),
        "arena": math.nan if arena is None else float(arena),
        "traffic": math.nan if traffic is None else float(traffic["bytes"]),
        "launched": float(sum(bytes_ for bytes_, _ in launches)),
        "time": math.fsum(seconds for _, seconds in launches),
        "machine": variant["machine"].get("sha256"),
    }


def _variant_facts(target: str, base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Fact]:
    def fact(name: str, why: str = "", source: str = "") -> Fact:
        return Fact(name, target, base[source or name], new[source or name], why)

    def is_symbolic(name: str) -> bool:
        return math.isnan(base[name] + new[name])

    yield fact("kernels")
    yield fact("arena", "it depends on sizes that a run decides" if is_symbolic("arena") else "")
    yield fact("traffic", source="launched" if is_symbolic("traffic") else "")
    is_priced_alike = base["machine"] == new["machine"]
    yield fact("time", "" if is_priced_alike else "the base is priced for another machine")
