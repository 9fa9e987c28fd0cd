"""Work that another thread ends: loops, handlers that swallow the end, and ends that come too
late."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
from tcc.watch import watched


class LateError(Exception):
    pass


def late() -> Exception:
    return LateError("late")


def never() -> None:
    return None


def loop() -> None:
    """Loops for half a minute, so that a test that does not end it fails instead of hanging."""
    for _ in range(1 << 30):
        pass


def swallowing() -> None:
    """Swallows the first exception that ends it, like a finaliser, and loops again."""
    try:
        loop()
    except BaseException:
        loop()


def failing() -> None:
    """Raises another exception while it is being ended."""
    try:
        loop()
    finally:
        raise KeyError("x")


@pytest.mark.parametrize("work", [loop, swallowing, failing])
def test_work_ends_wherever_it_is(
    work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tcc.watch._SECONDS", 0.01)
    monkeypatch.setattr("tcc.watch._AGAIN", 0.05)
    count = threading.active_count()
    with pytest.raises(LateError):
        watched(late, work)
    assert threading.active_count() == count


def test_the_end_is_of_the_thread_that_is_watched() -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            watched(late, loop)
        except LateError:
            ended.append("other")

    thread = threading.Thread(target=work)
    thread.start()
    watched(never, thread.join)
    assert ended == ["other"]


def test_work_that_is_done_or_fails_by_itself_is_left_alone() -> None:
    assert watched(never, lambda: 3) == 3
    with pytest.raises(KeyError):
        watched(never, lambda: {}["x"])
    with pytest.raises(KeyboardInterrupt):
        watched(late, interrupted)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_end_that_comes_too_late_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the work is done, or it is late; in both cases nothing is raised afterwards."""
    monkeypatch.setattr("tcc.watch._SECONDS", 0.0)
    monkeypatch.setattr("tcc.watch._AGAIN", 1000.0)  # a second end comes seconds later
    late_ones = 0
    for number in range(300):
        try:
            watched(late, partial(sum, range(100 * number)))
        except LateError:
            late_ones += 1
    assert late_ones > 0


PROFILED = """
import sys
from tcc.watch import watched

def nothing():
    return 1

def ends():
    while True:
        pass

assert watched(lambda: None, nothing) == 1
try:
    watched(lambda: ValueError("enough"), ends)
except ValueError:
    pass
calls = []
sys.setprofile(lambda frame, event, argument: calls.append(event))
nothing()
sys.setprofile(None)
assert "call" in calls
"""


def test_calls_under_a_profiler_end_after_watched_work() -> None:
    """The test uses a new process, which would not end without the fix."""
    subprocess.run([sys.executable, "-c", PROFILED], check=True, timeout=60)
