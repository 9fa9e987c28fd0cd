"""What a table's head says of the processor that it was measured on."""

import os

from tcc.target import ARCHITECTURES, Target


def processor_line(target: Target) -> str:
    """Its name, the cores that this process may use, and what it lacks."""
    return f"{target.text}, {len(os.sched_getaffinity(0))} cores; lacks: {lacks(target)}"


def lacks(target: Target) -> str:
    """The instructions that code for its architecture may use and it has not, by LLVM's names."""
    isa = ARCHITECTURES[target.profile.arch].isa
    missing = (row.name for row in isa if row.name not in target.profile.features)
    return " ".join(missing) or "nothing"
