"""Budgets: how much one compile may take, as data.

The fields of `Budgets` are the one table.  Model files are hostile input: a small one can ask for
any number of nodes, depth and time.  What is over a budget ends with an error that names it.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from tcc.errors import UserError
from tcc.later import later
from tcc.memory import at_most, data, is_limited, memory_here, taken, taken_together
from tcc.watch import watched

if TYPE_CHECKING:
    import numpy as np
else:
    np = later("numpy")

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_ROOM = 64 << 20  # what a compile of the least model takes more than this process does before it
_NO_MEMORY = re.compile(
    r"(?i)(out of|not enough|allocate|virtual) memory|MemoryError|bad_alloc|allocation failed|"
    r"failed to map segment|can't start new thread"
)
_Result = TypeVar("_Result")
_NUMBER = re.compile(r"([0-9]+)([KMGT]?)(?:iB|B)?")


def _budget(default: int, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The most that a compile may take.  Make one with `read_budgets`, which checks the values."""

    nodes: int = _budget(1_000_000, "nodes with functions and bodies in place of their calls")
    nesting: int = _budget(64, "bodies and functions inside one another")
    import_seconds: int = _budget(600, "seconds of reading the model")
    kernel_seconds: int = _budget(600, "seconds that one kernel's code takes")
    kernel_bytes: int = _budget(8 << 30, "bytes of memory of each process that makes code")
    seconds: int = _budget(3600, "seconds of the whole compile")
    bytes: int = _budget(0, "bytes of memory of all processes together")

    def memory(self, others_bytes: int = 0) -> int:
        """Bytes that the compile may take where `held` of those that there are belong to others."""
        there = memory_here() - others_bytes
        return min(self.bytes or there // 4 * 3, there)

    def over(self, name: str, *, where: str = "", why: str = "", minimum: int = 0) -> UserError:
        """The error for a model that is over the budget `name`; it takes `least`, if known."""
        limit = self.memory() if name == "bytes" else getattr(self, name)
        raised = max(2 * limit, minimum)
        hint = f"if that is meant, raise it: --budget {name}={raised}"
        if name == "bytes" and raised > (there := memory_here()):
            hint = f"it needs more memory than the {there} that there are"
        return UserError(
            f"the model is over the budget of {limit} {MEANINGS[name]}",
            where=where,
            why=why,
            hint=hint,
        )


BUDGETS = Budgets()


# What each budget counts.
MEANINGS: Mapping[str, str] = MappingProxyType(
    {item.name: item.metadata["meaning"] for item in fields(Budgets)}
)


def budgets_help() -> str:
    """The table in one sentence, for the flag's help."""
    rows = (
        f"{name}={getattr(BUDGETS, name) or 'three quarters of what there is'} ({what})"
        for name, what in MEANINGS.items()
    )
    return f"The most that the compile may take, K, M, G for 2^10, 2^20, 2^30: {'; '.join(rows)}."


def read_budgets(values: Mapping[str, int | str] | Sequence[str]) -> Budgets:
    """Budgets from a mapping, or from `NAME=VALUE` texts.

    Raises ValueError with one sentence for an unknown name or a value that is no count.
    """
    pairs = (
        values.items()
        if isinstance(values, Mapping)
        else [item.partition("=")[::2] for item in values]
    )
    counts = {}
    for name, value in pairs:
        if name not in MEANINGS:
            raise ValueError(f"there is no budget {name!r}, but {', '.join(MEANINGS)}")
        counts[name] = read_count(value, f"{name}={value}")
    return Budgets(**counts)


def read_count(value: int | str, where: str) -> int:
    """`4G` or `4GiB` as a number; raises ValueError, which names `where`, for what is no count."""
    match = _NUMBER.fullmatch(str(value))
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{where} is not a count of at least 1, as in 64, 100K or 4G")
    return int(match[1]) << _UNITS[match[2]]


def within(budgets: Budgets, work: Callable[[], _Result], *, whole: bool = False) -> _Result:
    """The result of `work`.  Meanwhile this process and those that work for it take no more time
    and memory than their budgets say, and no more memory than there is.

    `whole`: what this process holds already counts too; else it is memory that is not there.
    Raises the error of the budget that was too small, whatever failed for it, and at once where
    memory is below the least that any compile takes.
    """
    base_data, base_resident = (0, 0) if whole else (data(), taken())
    budgets = replace(budgets, bytes=budgets.memory(base_resident))
    begun = time.monotonic()

    def look() -> UserError | None:
        if time.monotonic() - begun > budgets.seconds:
            return budgets.over("seconds")
        if (together := taken_together() - base_resident) > budgets.bytes:
            return budgets.over("bytes", why=f"it took {together}", minimum=together)
        return None

    np.ones((64, 64)) @ np.ones((64, 64))  # its library ends the process if it gets no memory
    minimum = data() + _ROOM - base_data
    if minimum > budgets.bytes:
        raise budgets.over(
            "bytes", why=f"no compile takes less than {minimum} here", minimum=minimum
        )
    with at_most(base_data + budgets.bytes):
        try:
            return watched(look, work)
        except Exception as error:
            lacking = isinstance(error, MemoryError) or lacks_memory(str(error))
            if isinstance(error, UserError) or not lacking:
                raise
            raise out_of_memory(budgets, error) from error


def lacks_memory(text: str) -> bool:
    """Whether a failure that says so is one of memory."""
    return _NO_MEMORY.search(text) is not None


def out_of_memory(budgets: Budgets, error: BaseException) -> UserError:
    """The error of this process for one that memory was missing for: of its budget, if that is
    its limit."""
    why = str(error) or type(error).__name__
    if is_limited():
        return budgets.over("bytes", why=why)
    return UserError("there is not enough memory", why=why)
