"""Profiles compute times from stamps, and survive damaged manifests and full disks."""

from __future__ import annotations

import copy
import json
import zlib
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from programs import Builder
from tcc.ir.program import Input
from tcc.runtime import Module, RuntimeFailure, abi
from tcc.runtime.profile import ModuleProfile, Startup, profile
from tcc.runtime.profile_facts import ProfileFacts, Roof, StepFact, profile_facts
from tcc.runtime.profile_roofs import roofline
from tcc.runtime.profile_text import lines, record
from tcc.runtime.profile_trace import trace_text
from tcc.runtime.reports import Statistics
from tcc.runtime.stamps import RUN, StampedRun
from tcc.runtime.whole_files import write_whole

HOSTILE = """</script><b>'"&\\ {{ 7*7 }} \u2028\x01"""
_STATISTICS = Statistics(4096, 2048, 0, 0, 0, 0, 2)
_ROOFS = (Roof("L1", 4e11, 65536), Roof("L2", 2e11, 1 << 20), Roof("memory", 1e10, None))


def stamps(*rows: tuple[int, int, int, int, int], lost: int = 0) -> StampedRun:
    """Returns the run of these stamps (begin, end, step, thread, execution), with the run's own
    stamp at the end."""
    first, last = min(row[0] for row in rows) - 10, max(row[1] for row in rows) + 10
    return StampedRun(np.array([*rows, (first, last, RUN, 1, 0)], abi.STAMP), lost)


def facts(*steps: StepFact, live: tuple[int, ...] = ()) -> ProfileFacts:
    return ProfileFacts("cpu", "m", 2, 1e11, _ROOFS, steps, live, max(live, default=None))


def made(run: StampedRun, described: ProfileFacts) -> ModuleProfile:
    startup = Startup(1e-3, 2e-3, 3e-3)
    return ModuleProfile("m", described, [run], [run.seconds], startup, _STATISTICS)


TWO_THREADS = stamps(
    (100, 200, 0, 1, 1), (110, 190, 0, 2, 1), (200, 260, 0, 1, 1),  # pieces of one launch
    (300, 340, 1, 1, 2), (350, 400, 0, 1, 3), (350, 450, 0, 2, 3),
)  # fmt: skip
STEPS = facts(
    StepFact("kernel 0", "conv_1 (Conv)", 1000, 500, 1e-7, "compute"),
    StepFact("sort", ""),
    live=(1024, 2048),
)


def test_pieces_of_a_launch_are_one_execution() -> None:
    first, second, third = made(TWO_THREADS, STEPS).executions
    origin = 90  # of the run
    assert (first.step, first.threads) == (0, 2)
    assert first.begin == pytest.approx((100 - origin) * 1e-9)
    assert first.end == pytest.approx((260 - origin) * 1e-9)
    assert first.busy == pytest.approx((100 + 80 + 60) * 1e-9)
    assert (second.step, third.step, third.threads) == (1, 0, 2)


def test_times_of_steps_and_between_sum_to_the_run() -> None:
    result = made(TWO_THREADS, STEPS)
    longest, shortest = result.steps
    assert (longest.number, longest.launches, shortest.launches) == (0, 2, 1)
    assert longest.seconds == pytest.approx((160 + 100) * 1e-9)
    assert longest.predicted == pytest.approx(2e-7)
    assert longest.idle == pytest.approx(1 - (240 + 150) / (2 * 160 + 2 * 100))
    total = sum(step.seconds for step in result.steps) + result.between
    assert total == pytest.approx(result.seconds)
    assert sum(step.share for step in result.steps) <= 1


def test_only_the_fastest_quarter_of_runs_counts() -> None:
    slow = stamps((0, 10_000_000, 0, 1, 1))
    runs = [slow, slow, TWO_THREADS, slow, slow]
    plain = [1.0, 1.0, TWO_THREADS.seconds, 1.0, TWO_THREADS.seconds]
    result = ModuleProfile("m", STEPS, runs, plain, Startup(0, 0, 0), _STATISTICS)
    assert len(result.quiet) == 2  # 5 / 4, rounded up
    fastest = ModuleProfile("m", STEPS, runs[:3], plain[:3], Startup(0, 0, 0), _STATISTICS)
    assert fastest.seconds == TWO_THREADS.seconds
    assert fastest.overhead == pytest.approx(0)


def test_threads_that_were_busy_are_shown_and_not_those_that_are_allowed() -> None:
    result = made(TWO_THREADS, STEPS)
    busy = (240 + 150 + 40) / 370  # nanoseconds of work, and of the run
    assert result.busy_threads == pytest.approx(busy)
    assert result.threads_text == f"{busy:.1f} of 2 threads busy"
    assert result.threads_text in next(lines(result))
    assert result.threads_text in result._repr_html_()
    one = stamps((0, 100, 0, 1, 1))
    assert made(one, STEPS).threads_text == "0.8 of 2 threads busy"


@pytest.mark.parametrize(
    ("stamped", "plain", "text"),
    [
        ([100, 100], [100, 100], "within noise"),
        ([90, 90], [100, 100], "within noise"),  # a negative overhead
        ([103, 103], [100, 100], "+3.0%"),
        ([103, 103], [98, 102], "within noise"),  # equal runs differ by 4 %
        ([110, 110], [98, 102], "+10.0%"),
        ([97, 109], [100, 100], "within noise"),
    ],
)
def test_an_overhead_below_the_noise_is_not_given(
    stamped: list[int], plain: list[int], text: str
) -> None:
    """There are four times as many runs, of which the fastest quarter counts; the others are
    slow."""
    slow = [1000] * 3 * len(stamped)
    runs = [stamps((0, time - 20, 0, 1, 1)) for time in (*stamped, *slow)]
    seconds = [time * 1e-9 for time in (*plain, *slow)]
    result = ModuleProfile("m", STEPS, runs, seconds, Startup(0, 0, 0), _STATISTICS)
    assert result.overhead_text == text
    assert f"stamps cost: {text}" in next(lines(result))


# ---- the roofline --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_no_dot_is_above_its_roof(seed: int) -> None:
    """Machines are slower and faster than their description, and steps have any work."""
    draw = np.random.default_rng(seed)
    count, begin, rows, steps = 12, 0, [], []
    for number in range(count):
        end = begin + int(draw.integers(1, 10**6))
        rows.append((begin, end, number, 1, number + 1))
        flops, bytes_ = (int(10 ** draw.uniform(0, 10)) for _ in range(2))
        steps.append(StepFact(f"kernel {number}", "", flops, bytes_, 1e-6))
        begin = end
    roofs = roofline(made(stamps(*rows), facts(*steps)))
    levels = {roof.name: roof for roof in roofs.roofs}
    assert len(roofs.dots) == count
    for dot in roofs.dots:
        fact = dot.step.fact
        assert 0 < dot.share <= 1
        assert dot.rate <= roofs.peak
        level = next(r for r in _ROOFS if r.capacity is None or fact.bytes <= r.capacity)
        slope = levels[level.name].bytes_per_second * dot.intensity
        assert dot.rate <= slope * (1 + 1e-12)
        assert dot.rate == pytest.approx(fact.flops / dot.step.seconds)
    before = {roof.name: roof.bytes_per_second for roof in _ROOFS} | {"peak": 1e11}
    after = {roof.name: roof.bytes_per_second for roof in roofs.roofs} | {"peak": roofs.peak}
    assert {name for name in before if after[name] > before[name]} == set(roofs.raised)


def test_steps_without_arithmetic_have_no_dot() -> None:
    assert roofline(made(TWO_THREADS, STEPS)).dots[0].step.number == 0
    described = facts(StepFact("kernel 0", "", 0, 100, 1e-6), StepFact("sort", ""))
    assert roofline(made(TWO_THREADS, described)).dots == ()


# ---- the trace -----------------------------------------------------------------------------------


def test_a_trace_has_the_fields_that_perfetto_reads() -> None:
    """The test checks the schema, because trace_processor is a program that its package downloads.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU is the format.
    """
    trace = json.loads(trace_text(made(TWO_THREADS, STEPS)))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for event in slices:
        assert {type(event[key]) for key in ("ts", "dur")} <= {int, float}
        assert event["dur"] >= 0
        assert type(event["pid"]) is type(event["tid"]) is int
    assert [event["name"] for event in slices[:3]] == ["load", "weights", "first run"]
    pieces = [event for event in slices if event["name"] == "conv_1 (Conv)"]
    assert sum(event["dur"] for event in pieces) == pytest.approx((240 + 150) / 1e3)
    (run,) = [event for event in slices if event["name"] == "run"]
    for event in slices[3:]:
        assert run["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= run["ts"] + run["dur"] + 1e-9
    counters = [event["args"]["bytes"] for event in trace["traceEvents"] if event["ph"] == "C"]
    assert set(counters) == {1024, 2048}
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert threads[1] == "caller"
    assert set(threads) == {event["tid"] for event in slices}


def test_names_of_any_kind_are_text() -> None:
    step = StepFact("kernel 0", HOSTILE, 1000, 500, 1e-7, "compute")
    result = made(TWO_THREADS, facts(step, StepFact("sort", "")))
    names = {event["name"] for event in json.loads(trace_text(result))["traceEvents"]}
    assert HOSTILE in names
    assert json.loads(json.dumps(record(result)))["steps"][0]["location"] == HOSTILE
    assert "</script>" not in result._repr_html_()
    assert any(HOSTILE in line for line in lines(result))


# ---- whole profiles ------------------------------------------------------------------------------


def packed(locations: Any, live: Any, numbers: Any = ()) -> list[str]:
    """Returns the packed entry of locations, given as texts without numbers, or as texts with
    differences of numbers."""
    texts = [[text] if type(text) is str else text for text in locations]
    return [b64encode(zlib.compress(json.dumps([texts, numbers, live]).encode())).decode()]


def describe(module: Module, *steps: int | str) -> None:
    """Gives a hand-linked module the facts that a compile writes."""
    kernel = {"symbol": "k", "source": "node", "flops": 8, "contraction_flops": 0, "bytes": 64}
    module.manifest["variants"][0] |= {
        "kernels": [kernel | {"seconds": 1e-6, "limit": "compute", "limit_share": 0.5}],
        "steps": list(steps),
        "machine": {
            "name": "m", "cores": 2, "flops_per_second": 1e11, "bytes_per_second": 1e10,
            "caches": [[32768, 4e11], [1 << 20, 2e11], [1 << 23, 5e10]],
        },
        "profile": {"packed": packed(["a"] * len(steps), [64] * len(steps))},
    }  # fmt: skip


def relu(count: int) -> Builder:
    """Returns `count` launches of 8 tiles."""
    b = Builder()
    size = b.const(8)
    b.input("x", "f32", [size], "[8]")
    y = b.output("y", "f32", [size], "[8]")
    b.allocate(y, b.const(32))
    x = b.buffer(Input(0))
    for _ in range(count):
        b.launch("relu", size, [x, y])
    return b


X = {"x": np.ones(8, np.float32)}


def test_a_profile_runs_the_module_and_names_its_steps(linked: Callable[..., Module]) -> None:
    module = linked(relu(3), threads=2)
    describe(module, 0, 0, 0)
    result = profile(module, X, runs=3)
    assert (len(result.runs), len(result.plain_seconds), result.lost) == (3, 3, 0)
    assert sorted(step.number for step in result.steps) == [0, 1, 2]
    assert all(step.launches == 1 and step.seconds > 0 for step in result.steps)
    assert min(result.startup.load, result.startup.weights, result.startup.first_run) > 0
    assert "slowest" in repr(result)


def test_a_profile_of_20_000_steps(linked: Callable[..., Module], tmp_path: Path) -> None:
    module = linked(relu(20_000), threads=1)
    describe(module, *[0] * 20_000)
    result = profile(module, X, runs=1)
    assert (result.lost, len(result.executions), len(result.steps)) == (0, 20_000, 20_000)
    result.save_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 20_000


def test_a_small_ring_loses_stamps_and_says_so(linked: Callable[..., Module]) -> None:
    module = linked(relu(10_000), threads=1)
    describe(module, *[0] * 10_000)
    result = profile(module, X, runs=1, room=abi.LEAST_STAMPS)
    assert result.lost == 10_001 - abi.LEAST_STAMPS
    assert any(f"lost {result.lost} stamps" in line for line in lines(result))


def test_a_model_without_kernels(linked: Callable[..., Module]) -> None:
    module = linked(relu(0), threads=1)
    describe(module)
    result = profile(module, X, runs=2)
    assert (result.steps, result.executions) == ((), ())
    assert result.between == pytest.approx(result.seconds)
    assert "the program has no steps" in [*lines(result)]
    assert json.loads(trace_text(result))["traceEvents"]
    assert result._repr_html_()


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.pop("profile"),
        lambda v: v["profile"].update(packed=3),
        lambda v: v["profile"].update(packed=[3]),
        lambda v: v["profile"].update(packed=["?"]),
        lambda v: v["profile"].update(packed=[b64encode(b"no zlib").decode()]),
        lambda v: v["profile"].update(packed=[v["profile"]["packed"][0][:-8]]),
        lambda v: v["profile"].update(packed=packed(["a"], [])),
        lambda v: v["profile"].update(packed=packed(["a", 3], [])),
        lambda v: v["profile"].update(packed=packed(["a", [3]], [])),
        lambda v: v["profile"].update(packed=packed(["a", ["b", "c"]], [])),
        lambda v: v["profile"].update(packed=packed(["a", ["b", "c"]], [], ["1"])),
        lambda v: v["profile"].update(packed=packed(["a", "b"], [], [1])),
        lambda v: v["profile"].update(packed=packed(["a", "b"], [1])),
        lambda v: v["profile"].update(packed=packed(["a", "b"], [1, -1])),
        lambda v: v["profile"].update(packed=packed(["a", "b"], [1, 1 << 63])),
        lambda v: v["profile"].update(packed=packed(["a", "b"], [1, 1.5])),
        lambda v: v["profile"].update(packed=packed({}, [])),
        lambda v: v.update(steps=[0, 7]),
        lambda v: v["machine"].update(cores=0),
        lambda v: v["machine"].update(caches=[[1]]),
        lambda v: v["machine"].update(caches=[["1", 2.0]]),
        lambda v: v["machine"].update(flops_per_second=float("nan")),
        lambda v: v["machine"].update(bytes_per_second=float("inf")),
    ],
)
def test_a_damaged_manifest_is_refused(
    linked: Callable[..., Module], damage: Callable[[dict[str, Any]], object]
) -> None:
    module = _described(linked)
    damage(module.manifest["variants"][0])
    with pytest.raises(RuntimeFailure, match="does not describe its steps"):
        profile(module, X, runs=1)


def _described(linked: Callable[..., Module]) -> Any:
    """Returns a stand-in for a module of two steps, whose manifest a test may change."""
    module = linked(relu(2))
    describe(module, 0, 0)
    manifest = copy.deepcopy(module.manifest)
    return SimpleNamespace(
        manifest=manifest, variant=0, inputs=module.inputs, _error=module._error, _path=module._path
    )


def test_changed_bytes_are_facts_or_refused(linked: Callable[..., Module]) -> None:
    """Every byte of the packed entry changes in turn; a change may keep the meaning."""
    module = _described(linked)
    entry = module.manifest["variants"][0]["profile"]
    (packed_text,) = entry["packed"]
    refusals = set()
    for place in range(len(packed_text)):
        for character in "A/=\n":
            entry["packed"] = [packed_text[:place] + character + packed_text[place + 1 :]]
            try:
                described = profile_facts(module, {"x": (8,)})
            except RuntimeFailure as failure:
                refusals.add(str(failure).splitlines()[0])
                continue
            assert len(described.steps) == 2
    assert refusals == {"the artifact's manifest does not describe its steps"}


def test_an_entry_that_unpacks_to_too_much_is_refused(linked: Callable[..., Module]) -> None:
    module = _described(linked)
    bomb = b64encode(zlib.compress(b" " * (65 << 20), 9)).decode()
    module.manifest["variants"][0]["profile"]["packed"] = [bomb]
    with pytest.raises(RuntimeFailure, match="cut off, or too large"):
        profile_facts(module, {})


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_is_whole_or_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_whole(path, b"old")
    monkeypatch.setattr("os.replace", _full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [
        ("page.html", b"old")
    ]


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_device_is_an_error_and_stays_a_device() -> None:
    result = made(TWO_THREADS, STEPS)
    with pytest.raises(OSError, match="No space"):
        result.save_trace("/dev/full")
    assert Path("/dev/full").is_char_device()
