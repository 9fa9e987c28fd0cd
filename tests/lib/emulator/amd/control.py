"""Control flow: branches, barriers, waits and the end of the program."""

from __future__ import annotations

from typing import Any

from tests.lib.emulator.faults import Fault, Unknown

from .decode import target
from .forms import form
from .operands import Operands
from .waves import EXEC, VCC, Step, Strand

# Hints, caches that the emulator does not model, and messages to the driver about free registers.
_NOTHING = ("s_nop", "s_clause", "s_delay_alu", "s_waitcnt_depctr", "s_sendmsg", "buffer_gl0_inv",
            "s_sleep", "s_setprio", "s_inst_prefetch", "s_set_inst_prefetch_distance",
            "s_code_end")  # fmt: skip


@form(*_NOTHING)
def _nothing(o: Operands) -> Step:
    return lambda m, s: None


@form("s_endpgm")
def _end(o: Operands) -> Step:
    return lambda m, s: m.ended(s)


@form("s_barrier")
def _barrier(o: Operands) -> Step:
    def step(m: Any, s: Strand) -> Any:
        if any(pending.shared_write for pending in s.pending):
            raise Fault("a barrier while writes to shared memory are under way: no s_waitcnt")
        return m.waits(s)

    return step


@form("s_branch")
def _branch(o: Operands) -> Step:
    to = target(o.i)

    def step(m: Any, s: Strand) -> None:
        s.pc = m.program.places[to]

    return step


_CONDITIONS = {
    "scc0": lambda s: ~s.scc, "scc1": lambda s: s.scc,
    "vccz": lambda s: ~s.lanes_of(VCC).any(1), "vccnz": lambda s: s.lanes_of(VCC).any(1),
    "execz": lambda s: ~s.lanes_of(EXEC).any(1), "execnz": lambda s: s.lanes_of(EXEC).any(1),
}  # fmt: skip


@form(*(f"s_cbranch_{name}" for name in _CONDITIONS))
def _conditional(o: Operands) -> Step:
    to, holds = target(o.i), _CONDITIONS[o.i.name.removeprefix("s_cbranch_")]
    if "vcc" in o.i.name:
        o.touched |= {VCC + n for n in range(o.arch.mask_words)}

    def step(m: Any, s: Strand) -> Any:
        condition = holds(s)
        if condition.all():
            s.pc = m.program.places[to]
        elif condition.any():
            return m.divides(s, condition, m.program.places[to])
        return None

    return step


# ---- waits --------------------------------------------------------------------------------------

_ALL = 63


def _counts(o: Operands) -> dict[str, int]:
    """Returns the number of requests of each kind that may stay pending."""
    word = o.i.get("simm16")
    if o.arch.name == "gfx1100":
        return {"loads": word >> 10 & 63, "shared": word >> 4 & 63}
    return {"loads": word & 15 | word >> 10 & 48, "shared": word >> 8 & 15}


@form("s_waitcnt")
def _wait(o: Operands) -> Step:
    counts = _counts(o)
    if o.arch.name == "gfx942" and counts["shared"] == 15:
        counts["shared"] = _ALL
    return lambda m, s: settle(s, counts)


@form("s_waitcnt_vscnt")
def _wait_for_writes(o: Operands) -> Step:
    if o.i.get("simm16") > _ALL:
        raise Unknown("s_waitcnt_vscnt of more than 63")
    return lambda m, s: None  # It waits for stores only, and stores write no registers.


def settle(s: Strand, counts: dict[str, int]) -> None:
    """Removes completed requests: a counter completes its requests in order.

    Loads of scalars may complete in any order, so they count as pending until the counter is zero.
    """
    for counter, count in counts.items():
        mine = [pending for pending in s.pending if pending.counter == counter]
        if len(mine) <= count or (count and any(pending.any_order for pending in mine)):
            continue
        gone = mine[: len(mine) - count]
        s.pending = [pending for pending in s.pending if not any(pending is g for g in gone)]
