"""The roofline of a profile: the rate of each step, and the roof above it.

Source: S. Williams, A. Waterman and D. Patterson, Roofline: An Insightful Visual Performance Model
for Multicore Architectures (CACM 2009), with a roof for each level of memory.

A step's own roof is that of the smallest level that holds the bytes of a launch: an operand may
lie there because the step before wrote it. The rates are those of the machine for which the
artifact was compiled. The machine that runs it may be faster, so a roof that a step exceeds is
raised to that step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tcc.runtime.profile_facts import Roof

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile, StepProfile


@dataclass(frozen=True, slots=True)
class Dot:
    """A step in the roofline.

    `intensity` is in flops a byte, `rate` in flops a second. `roof` is the highest rate that the
    step's level of memory and the peak allow at this intensity, and `binding` names which of the
    two that is: "peak" or the level.
    """

    step: StepProfile
    intensity: float
    rate: float
    roof: float
    binding: str

    @property
    def share(self) -> float:
        """Returns the part of its roof that the step reaches: at most 1."""
        return self.rate / self.roof


@dataclass(frozen=True, slots=True)
class Roofline:
    """The peak in flops a second, the levels of memory, and a dot for each step with arithmetic.

    `raised` names the roofs that are higher than those of the machine's description.
    """

    peak: float
    roofs: tuple[Roof, ...]
    dots: tuple[Dot, ...]
    raised: tuple[str, ...]


def roofline(profile: ModuleProfile) -> Roofline:
    """Returns the roofline for the threads of the profile; no dot is above its roof."""
    facts = profile.facts
    share = min(1.0, profile.threads / facts.cores)
    *caches, memory = facts.roofs
    roofs = {
        cache.name: replace(
            cache,
            bytes_per_second=cache.bytes_per_second * share,
            capacity=None if cache.capacity is None else int(cache.capacity * share),
        )
        for cache in caches
    } | {memory.name: memory}
    peak, raised = facts.flops_per_second * share, []
    points = [point for step in profile.steps if (point := _point(step, [*roofs.values()]))]
    for _, intensity, rate, level in points:
        if rate > peak:
            peak = rate
            raised.append("peak")
        if rate / intensity > roofs[level].bytes_per_second:
            roofs[level] = replace(roofs[level], bytes_per_second=rate / intensity)
            raised.append(level)
    dots = []
    for step, intensity, rate, level in points:
        slope = roofs[level].bytes_per_second * intensity
        # rounding may put the rate an ulp above the product that it was divided from
        roof = max(rate, min(peak, slope))
        dots.append(Dot(step, intensity, rate, roof, "peak" if peak <= slope else level))
    return Roofline(peak, tuple(roofs.values()), tuple(dots), tuple(dict.fromkeys(raised)))


def _point(step: StepProfile, roofs: list[Roof]) -> tuple[StepProfile, float, float, str] | None:
    """Returns (step, intensity, rate, level); None for a step without arithmetic, bytes or time."""
    flops, bytes_ = step.fact.flops, step.fact.bytes
    if not flops or not bytes_ or not step.seconds or not step.launches:
        return None
    level = next(r.name for r in roofs if r.capacity is None or bytes_ <= r.capacity)
    return step, flops / bytes_, flops * step.launches / step.seconds, level
