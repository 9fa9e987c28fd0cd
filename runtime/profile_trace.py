"""A profile as a trace in Chrome's JSON format, which Perfetto opens.

Source of the format: "Trace Event Format", Google, as https://perfetto.dev/docs reads it. Times are
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tcc.runtime.stamps import StampedRun

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile

_PROCESS = 1
_STARTUP = 0  # the thread of start-up, which no system numbers so


def trace_text(profile: ModuleProfile) -> str:
    """Returns the JSON text of the trace: start-up, then each stamped run with its steps."""
    events = [*_names(profile), *_startup(profile)]
    for stamped_run in profile.runs:
        events += _run(profile, stamped_run)
    other = {"model": profile.name, "lost stamps": profile.lost}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other})


def _origin(profile: ModuleProfile) -> int:
    """Returns the first nanosecond of all runs."""
    return min(int(stamped_run.stamps["begin"].min()) for stamped_run in profile.runs)


def _names(profile: ModuleProfile) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _STARTUP, f"tcc {profile.name}")
    yield _name("thread_name", _STARTUP, "start-up")
    caller = int(profile.runs[0].stamps["thread"][-1])
    threads = {
        int(t) for stamped_run in profile.runs for t in set(stamped_run.stamps["thread"].tolist())
    }
    for thread in sorted(threads):
        yield _name("thread_name", thread, "caller" if thread == caller else f"worker {thread}")


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": {"name": name}}


def _slice(name: str, thread: int, begin: float, duration: float, **args: Any) -> dict[str, Any]:
    times = {"ts": begin, "dur": duration}
    return {"ph": "X", "pid": _PROCESS, "tid": thread, "name": name, **times, "args": args}


def _startup(profile: ModuleProfile) -> Iterator[dict[str, Any]]:
    """Yields the parts of start-up, one after the other up to the first stamped run."""
    startup = profile.startup
    parts = (("load", startup.load), ("weights", startup.weights), ("first run", startup.first_run))
    begin = -sum(seconds for _, seconds in parts) * 1e6
    for name, seconds in parts:
        yield _slice(name, _STARTUP, begin, seconds * 1e6)
        begin += seconds * 1e6


def _run(profile: ModuleProfile, stamped_run: StampedRun) -> Iterator[dict[str, Any]]:
    origin, facts = _origin(profile), profile.facts
    begins = ((stamped_run.stamps["begin"] - origin) / 1e3).tolist()
    durations = ((stamped_run.stamps["end"] - stamped_run.stamps["begin"]) / 1e3).tolist()
    rows = zip(
        begins,
        durations,
        stamped_run.stamps["step"].tolist(),
        stamped_run.stamps["thread"].tolist(),
        strict=True,
    )
    for begin, duration, step, thread in rows:
        if step < 0:
            yield _slice("run", thread, begin, duration, lost_stamps=stamped_run.lost)
            continue
        fact = facts.steps[step]
        work = {"flops": fact.flops, "bytes": fact.bytes, "limit": fact.limit or None}
        args = {name: value for name, value in work.items() if value is not None}
        yield _slice(
            fact.location or fact.name, thread, begin, duration, kernel=fact.name, step=step, **args
        )
        if facts.live:
            live = {"bytes": facts.live[step]}
            yield {"ph": "C", "pid": _PROCESS, "ts": begin, "name": "arena", "args": live}
