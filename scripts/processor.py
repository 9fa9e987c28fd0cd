"""Describes the CPU of a measurement, for the headings of tables."""

import os

from tcc.target import ARCHITECTURES, Target


def processor_line(target: Target) -> str:
    """Returns the CPU's name, the cores that this process may use, and the missing instructions."""
    return f"{target.text}, {len(os.sched_getaffinity(0))} cores; lacks: {lacks(target)}"


def lacks(target: Target) -> str:
    """Returns LLVM's names of the instruction sets that the CPU lacks, or "nothing".

    Only sets count that tcc can use on CPUs of this architecture.
    """
    isa = ARCHITECTURES[target.profile.arch].isa
    missing = (row.name for row in isa if row.name not in target.profile.features)
    return " ".join(missing) or "nothing"
