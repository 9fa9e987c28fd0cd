"""Arena plans are valid by plain Python, and minimal by brute force; the command prints its
answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sanitized import FLAGS, run_sanitized
from tcc.backends.artifact.toolchain import planner_library, planner_sources
from tcc.runtime import arena
from tcc.runtime.planner import ArenaPlan, Life, Planner
from trials import HERE, RUNTIME, compile_c, includes

DATA = Path(__file__).parents[2] / "../shared/data"
CAPACITY = 1 << 20


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(planner_library())


# ---- oracles ------------------------------------------------------------------------------------


def clashes(lives: Sequence[Life], offsets: Sequence[int], n: int, peak: int) -> bool:
    """Returns True if buffer `n` breaks a rule by itself or with an earlier buffer."""
    life, at = lives[n], offsets[n]
    if at < 0 or at % life.alignment or at + life.size > peak:
        return True
    if life.fixed not in (-1, at) or (life.over >= 0 and offsets[life.over] != at):
        return True
    return any(
        life.lower < other.upper
        and other.lower < life.upper
        and at < start + other.size
        and start < at + life.size
        and life.size * other.size > 0
        for other, start in zip(lives[:n], offsets[:n], strict=True)
    )


def wrong(lives: Sequence[Life], offsets: Sequence[int], peak: int) -> bool:
    """Returns True if a plan breaks a rule, by a look at each pair of buffers."""
    return any(clashes(lives, offsets, n, peak) for n in range(len(lives)))


def fits(lives: Sequence[Life], capacity: int, offsets: tuple[int, ...] = ()) -> bool:
    """Returns True if a plan within the capacity exists, by trying every offset."""
    n = len(offsets)
    return n == len(lives) or any(
        not clashes(lives, (*offsets, at), n, capacity) and fits(lives, capacity, (*offsets, at))
        for at in range(capacity + 1)
    )


def most_live(lives: Sequence[Life]) -> int:
    return max(sum(b.size for b in lives if b.lower <= a.lower < b.upper) for a in lives)


def drawn(rng: random.Random, count: int, *, odd: bool) -> list[Life]:
    """Returns buffers of a few bytes; with `odd`, some have alignments, fixed offsets, or lie over
    others."""
    lives: list[Life] = []
    for n in range(count):
        lower = rng.randint(0, 8)
        life = Life(lower, rng.randint(lower + 1, 10), rng.randint(0, 5))
        dead = [m for m, b in enumerate(lives) if b.upper <= lower]
        free = [m for m in dead if all(b.over != m for b in lives)]
        if odd and free and rng.random() < 0.6:
            life = replace(life, over=rng.choice(free))
        elif odd and n == 0 and rng.random() < 0.3:
            life = replace(life, fixed=rng.randint(0, 5))
        elif odd:
            life = replace(life, alignment=rng.choice((1, 1, 2)))
        lives.append(life)
    return lives


# ---- plans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [False, True])
def test_plans_of_few_buffers_are_the_least(planner: Planner, odd: bool) -> None:
    rng = random.Random(odd)
    above = improved = 0
    for _ in range(300):
        lives = drawn(rng, rng.randint(1, 6), odd=odd)
        plan = planner.plan(lives)
        greedy = planner.plan(lives, steps=0)
        assert not wrong(lives, plan.offsets, plan.peak)
        assert not wrong(lives, greedy.offsets, greedy.peak)
        assert most_live(lives) <= plan.bound <= plan.peak <= greedy.peak
        improved += plan.peak < greedy.peak
        if plan.peak > plan.bound:
            above += 1
            assert not fits(lives, plan.peak - 1)
    # few plain buffers always reach the bound greedily
    assert (above > 10 and improved > 10) or not odd


def test_the_check_finds_planted_faults(planner: Planner) -> None:
    """One offset is changed at a time, and the pairwise oracle says whether that breaks a rule."""
    rng = random.Random(3)
    faults = 0
    for _ in range(300):
        lives = drawn(rng, rng.randint(2, 9), odd=True)
        plan = planner.plan(lives)
        offsets = list(plan.offsets)
        offsets[rng.randrange(len(lives))] += rng.choice((-2, -1, 1, 2))
        planted = ArenaPlan(tuple(offsets), plan.peak, plan.bound, plan.steps)
        if wrong(lives, offsets, plan.peak):
            faults += 1
            with pytest.raises(ValueError, match=r"^buffer "):
                planner.check(lives, planted)
        else:
            planner.check(lives, planted)
    assert faults > 100


@pytest.mark.skipif(not DATA.is_dir(), reason="the MiniMalloc instances are not at hand")
@pytest.mark.parametrize("letter", "ABCDEFGHIJK")
def test_minimalloc_instances_fit(planner: Planner, letter: str) -> None:
    """The budget in steps is about ten times the slowest instance's need."""
    path = DATA / f"minimalloc_{letter}.{CAPACITY}.csv"
    with path.open(encoding="utf-8") as file:
        lives = tuple(arena.read_lives(file, path.name).values())
    plan = planner.plan(lives, capacity=CAPACITY, steps=2 * 10**9)
    assert plan.peak <= CAPACITY
    assert not wrong(lives, plan.offsets, plan.peak)
    assert plan.bound == most_live(lives)


def test_equal_lives_have_equal_plans(planner: Planner) -> None:
    rng = random.Random(5)
    lives = [Life(n, n + rng.randint(1, 9), rng.randint(1, 99)) for n in range(60)]
    assert planner.plan(lives, steps=10**6) == planner.plan(tuple(lives), steps=10**6)


def test_sizes_are_rounded_to_the_smallest_alignment(planner: Planner) -> None:
    plan = planner.plan([Life(0, 2, 1, 64), Life(0, 2, 65, 64), Life(1, 2, 1, 64)])
    assert sorted(plan.offsets)[0] == 0
    assert (plan.peak, plan.bound) == (256, 256)


def test_no_buffers(planner: Planner) -> None:
    assert planner.plan([]) == ArenaPlan((), 0, 0, 0)
    planner.check([], ArenaPlan((), 0, 0, 0))


def test_thousands_of_buffers_take_no_more_steps_than_are_allowed(planner: Planner) -> None:
    rng = random.Random(1)
    lives = [Life(n // 2, n // 2 + rng.randint(1, 4), 64 * rng.randint(1, 9)) for n in range(20000)]
    plan = planner.plan(lives, steps=10**6)
    planner.check(lives, plan)
    assert plan.peak <= 1.05 * plan.bound
    assert plan.steps <= 1.1 * 10**6


def test_a_search_can_be_ended(planner: Planner) -> None:
    """The lives leave no byte to waste, so that a plan takes long to find or to refute."""
    rng = random.Random(0)
    lives = [Life(a, a + rng.randint(5, 40), rng.randint(100, 999)) for a in range(400)]
    calls: list[int] = []

    def go_on(steps: int, peak: int) -> bool:
        calls.append(steps)
        return len(calls) < 3

    planner.check(lives, planner.plan(lives, go_on=go_on))
    assert len(calls) == 3
    assert calls == sorted(calls)

    def interrupted(steps: int, peak: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planner.plan(lives, go_on=interrupted)


@pytest.mark.parametrize(
    ("lives", "message"),
    [
        ([Life(0, 1, 1), Life(3, 3, 1)], "buffer 1: its upper time is not above its lower"),
        ([Life(0, 1, -1)], "buffer 0: its size is negative"),
        ([Life(0, 1, 1, 3)], "buffer 0: its alignment is no power of two"),
        ([Life(0, 1, 1, 0)], "buffer 0: its alignment is no power of two"),
        ([Life(0, 1, 1 << 61), Life(0, 1, 1 << 61)], "buffer 1: the sizes up to it sum to more"),
        ([Life(0, 1, 1 << 63)], "does not fit into 64 bits"),
        ([Life(0, 1, 1, fixed=1 << 62)], "buffer 0: its fixed offset is too large"),
        ([Life(0, 1, 1, 8, fixed=4)], "buffer 0: its fixed offset is not aligned"),
        ([Life(0, 2, 1), Life(1, 3, 1, over=0)], "buffer 1: it lies over a buffer that lives when"),
        ([Life(0, 1, 1), Life(1, 3, 1, over=2)], "buffer 1: it lies over no other buffer"),
        ([Life(0, 1, 1), Life(1, 2, 1, over=0), Life(1, 2, 1, over=0)], "buffer 2: it lies over"),
        ([Life(0, 1, 2, fixed=0), Life(0, 1, 2, fixed=1)], "its fixed offset is another's"),
        ([Life(0, 1, 1, fixed=0), Life(1, 2, 1, over=0, fixed=1)], "is not that of the buffer it"),
    ],
)
def test_lives_that_are_none(planner: Planner, lives: list[Life], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planner.plan(lives)


def test_sanitizers_find_nothing_where_allocations_fail(tmp_path: Path) -> None:
    binary = tmp_path / "arena"
    sources = [HERE / "arena.c", *planner_sources()]
    compile_c("cc", (*FLAGS, *includes(RUNTIME)), sources, binary)
    assert run_sanitized(binary).endswith("many failed\n")


# ---- the command --------------------------------------------------------------------------------


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    planner: Planner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Returns a function that runs the command on a file with a text, and returns its exit code and
    output."""
    monkeypatch.setattr(arena, "LIBRARY", planner_library())
    monkeypatch.setattr(arena, "Planner", lambda: planner)

    def run(text: str, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "lives.csv"
        path.write_text(text)
        code = arena.main([str(path), *options])
        said = capsys.readouterr()
        return code, said.out, said.err.replace(str(path), "lives.csv")

    return run


LIVES = "id,lower,upper,size\na,0,2,3\nb,1,4,5\nc,3,5,3\n"


def test_a_plan_within_the_capacity(command: Command) -> None:
    assert command(LIVES, "--capacity", "8") == (0, "peak 8 bound 8 verdict valid\n", "")
    assert command(LIVES) == (0, "peak 8 bound 8 verdict valid\n", "")
    assert command(LIVES, "--capacity", "7") == (1, "peak 8 bound 8 verdict valid\n", "")
    assert command("id,lower,upper,size\n") == (0, "peak 0 bound 0 verdict valid\n", "")
    swapped = "size, id,upper,lower\n3,a,2,0\n\n5,b,4,1\n"
    assert command(swapped) == (0, "peak 8 bound 8 verdict valid\n", "")


def test_an_invalid_plan_is_told(
    command: Command, planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def plan(self, lives: Sequence[Life], **_: object) -> ArenaPlan:
            return ArenaPlan((0,) * len(lives), 5, 5, 0)

        check = planner.check

    monkeypatch.setattr(arena, "Planner", Broken)
    code, out, err = command(LIVES, "--capacity", "8")
    assert (code, out) == (1, "peak 5 bound 5 verdict invalid\n")
    assert err == "buffer 1 meets one that lives with it\n"


def test_offsets_are_written(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert command(LIVES, "--output", str(out))[0] == 0
    head, *rows = out.read_text().splitlines()
    assert head == "id,lower,upper,size,offset"
    assert [row.rpartition(",")[0] for row in rows] == LIVES.splitlines()[1:]
    assert sorted(tmp_path.iterdir()) == [tmp_path / "lives.csv", out]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lives.csv, line 1: the columns are not id, lower, upper, size"),
        ("id,lower,size\n", "lives.csv, line 1: the columns are not id, lower, upper, size"),
        (LIVES + "d,1,2\n", "lives.csv, line 5: 3 values for 4 columns"),
        (LIVES + "d,1,x,3\n", "lives.csv, line 5: upper 'x' is no whole number"),
        (LIVES + "d,1,2,1e3\n", "lives.csv, line 5: size '1e3' is no whole number"),
        (LIVES + "d,1,2,-3\n", "lives.csv, line 5: size -3 is negative"),
        (LIVES + "d,-1,2,3\n", "lives.csv, line 5: lower -1 is negative"),
        (LIVES + "d,2,2,3\n", "lives.csv, line 5: upper 2 is not above lower 2"),
        (LIVES + "\na,1,2,3\n", "lives.csv, line 6: the id 'a' is that of an earlier line"),
        (LIVES + f"d,1,2,{1 << 63}\n", f"lives.csv, line 5: size {1 << 63} is above 2^62"),
        (LIVES + f"d,1,2,{1 << 62}\n", "lives.csv, line 5: the sizes up to here sum to more than"),
        (LIVES + "d,1," + "9" * 5000 + ",1\n", "lives.csv, line 5: upper 9999"),
        (LIVES + "d,1,2,3\0\n", "lives.csv, line 5: "),
    ],
)
def test_files_that_are_wrong(command: Command, text: str, message: str) -> None:
    code, out, err = command(text)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert len(err) < 200


def test_arguments_that_are_wrong(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert arena.main([str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        command(LIVES, "--capacity", "-1")
    assert ended.value.code == 2


def test_seconds_end_the_search(command: Command) -> None:
    """The lives are an instance for which no plan of this capacity exists."""
    path = DATA / f"minimalloc_D.{CAPACITY}.csv"
    if not path.is_file():
        pytest.skip("the MiniMalloc instances are not at hand")
    started = time.monotonic()
    code, out, _ = command(path.read_text(), "--capacity", "986112", "--seconds", "0.2")
    assert code == 1
    assert out.endswith("verdict valid\n")
    assert time.monotonic() - started < 20


def test_a_missing_library_is_told(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "LIBRARY", tmp_path / "none.so")
    code, out, err = command(LIVES)
    assert (code, out) == (3, "")
    assert "the planner's library is missing" in err
