"""Records of a module's memory and times, and its default errors."""

from __future__ import annotations

from dataclasses import dataclass


class RuntimeFailure(RuntimeError):
    """The default error: its message says what happened, where, why, and what to do."""

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        parts = (
            what,
            where and f"at: {where}",
            why and f"because: {why}",
            hint and f"to do: {hint}",
        )
        super().__init__("\n  ".join(part for part in parts if part))


class RuntimeTimeout(RuntimeFailure, TimeoutError):
    """The default error of a run that exceeds its timeout."""


class InputError(RuntimeFailure):
    """An input that cannot be read; `what`, `where`, `why` and `hint` are the message's parts."""

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        self.what, self.where, self.why, self.hint = what, where, why, hint
        super().__init__(what, where=where, why=why, hint=hint)


class MissingLibraryError(InputError):
    """An optional library is missing that reads files of one kind."""


@dataclass(frozen=True, slots=True)
class Time:
    """The time of a step: how many times it ran, and for how many seconds in total."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Memory and threads of one instance, in bytes, as tcc_statistics of tcc.h describes them."""

    weight_bytes: int
    arena_bytes: int
    scratch_bytes: int
    state_bytes: int
    pool_bytes: int
    pool_high_water: int
    threads: int
