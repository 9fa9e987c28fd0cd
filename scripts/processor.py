"""Describes the processor of a measurement, for the heads of tables."""

import os

from tcc.target import ARCHITECTURES, Target


def processor_line(target: Target) -> str:
    """Returns the processor's name, the cores that this process may use, and the missing
    instructions."""
    return f"{target.text}, {len(os.sched_getaffinity(0))} cores; lacks: {lacks(target)}"


def lacks(target: Target) -> str:
    """Returns the instructions that code for its architecture may use but that the processor lacks,
    by LLVM's names."""
    isa = ARCHITECTURES[target.profile.arch].isa
    missing = (row.name for row in isa if row.name not in target.profile.features)
    return " ".join(missing) or "nothing"
