"""Budgets: how much one compile may take, as data.

The fields of `Budgets` list all limits.  Model files are hostile input: a small file can demand any
number of nodes, any depth and any time.  A compile over a budget ends with an error that names the
budget.
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
_ROOM = 64 << 20  # bytes that a compile of the smallest model adds to this process
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
    """The limits of a compile.

    Make one with `read_budgets`, which checks the values.
    """

    nodes: int = _budget(1_000_000, "nodes with functions and bodies in place of their calls")
    nesting: int = _budget(64, "bodies and functions inside one another")
    import_seconds: int = _budget(600, "seconds of reading the model")
    kernel_seconds: int = _budget(600, "seconds that one kernel's code takes")
    kernel_bytes: int = _budget(8 << 30, "bytes of memory of each process that makes code")
    seconds: int = _budget(3600, "seconds of the whole compile")
    bytes: int = _budget(0, "bytes of memory of all processes together")

    def memory(self, others_bytes: int = 0) -> int:
        """Returns the bytes that the compile may take.

        `others_bytes` of the machine's memory are in use and not available. The budget `bytes`
        limits the result; without it the limit is three quarters of the available memory.
        """
        machine_bytes = memory_here() - others_bytes
        return min(self.bytes or machine_bytes // 4 * 3, machine_bytes)

    def over(self, name: str, *, where: str = "", why: str = "", minimum: int = 0) -> UserError:
        """Returns the error for a model over the budget `name`.

        The hint proposes twice the budget, or `minimum` if that is more.
        """
        limit = self.memory() if name == "bytes" else getattr(self, name)
        proposal = max(2 * limit, minimum)
        hint = f"if that is meant, raise it: --budget {name}={proposal}"
        if name == "bytes" and proposal > (machine_bytes := memory_here()):
            hint = f"it needs more memory than the {machine_bytes} bytes of this machine"
        return UserError(
            f"the model is over the budget of {limit} {MEANINGS[name]}",
            where=where,
            why=why,
            hint=hint,
        )


BUDGETS = Budgets()


# The meaning of each budget, by name.
MEANINGS: Mapping[str, str] = MappingProxyType(
    {item.name: item.metadata["meaning"] for item in fields(Budgets)}
)


def budgets_help() -> str:
    """Returns the names and meanings of all budgets in one sentence, for the flag's help."""
    rows = (
        f"{name}={getattr(BUDGETS, name) or 'three quarters of what there is'} ({what})"
        for name, what in MEANINGS.items()
    )
    return f"The most that the compile may take, K, M, G for 2^10, 2^20, 2^30: {'; '.join(rows)}."


def read_budgets(values: Mapping[str, int | str] | Sequence[str]) -> Budgets:
    """Returns budgets from a mapping, or from `NAME=VALUE` texts.

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
    """Parses a count such as `4G` or `4GiB`; raises ValueError, which names `where`, for others."""
    match = _NUMBER.fullmatch(str(value))
    if match is None or int(match[1]) < 1:
        raise ValueError(f"{where} is not a count of at least 1, as in 64, 100K or 4G")
    return int(match[1]) << _UNITS[match[2]]


def within(budgets: Budgets, work: Callable[[], _Result], *, whole: bool = False) -> _Result:
    """Returns the result of `work`, which must stay within the budgets of time and memory.

    The memory of this process and of its helpers counts, and may not exceed the machine's. With
    `whole` the memory that this process already holds counts towards the budget; else it counts as
    unavailable. Raises the error of the exceeded budget, whichever step failed. Raises at once if
    the budget is below the minimum of any compile.
    """
    base_data, base_resident = (0, 0) if whole else (data(), taken())
    budgets = replace(budgets, bytes=budgets.memory(base_resident))
    start = time.monotonic()

    def look() -> UserError | None:
        if time.monotonic() - start > budgets.seconds:
            return budgets.over("seconds")
        if (growth := taken_together() - base_resident) > budgets.bytes:
            return budgets.over("bytes", why=f"it took {growth} bytes", minimum=growth)
        return None

    # NumPy's BLAS allocates at its first matmul, and ends the process if that fails under a limit.
    np.ones((64, 64)) @ np.ones((64, 64))
    minimum = data() + _ROOM - base_data
    if minimum > budgets.bytes:
        raise budgets.over(
            "bytes", why=f"no compile takes less than {minimum} bytes here", minimum=minimum
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
    """True where the message of a failure says that memory ran out."""
    return _NO_MEMORY.search(text) is not None


def out_of_memory(budgets: Budgets, error: BaseException) -> UserError:
    """Returns the UserError for a failure that lacked memory.

    The error names the budget of memory if that budget limits this process; otherwise it says that
    the machine lacks memory.
    """
    why = str(error) or type(error).__name__
    if is_limited():
        return budgets.over("bytes", why=why)
    return UserError("there is not enough memory", why=why)
