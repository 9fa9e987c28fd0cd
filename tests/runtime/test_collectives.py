"""In hand-written programs, a failing rank informs the other ranks, and wrong use of tickets is
stopped."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import programs
from programs import Builder
from tcc.ir.program import (
    Alias,
    Allocate,
    Check,
    Collective,
    CollectiveKind,
    Copy,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Program,
    RankGroup,
    ReadInt,
    Reduction,
    Relation,
    Symmetric,
    View,
    Wait,
)
from tcc.ir.types import DTYPES
from tcc.ops.collective import CollectiveAttrs

from tests.lib.oracle.collectives import collected
from tests.ranks import on_ranks, run_ranks


def checked() -> Program:
    """Returns y = the sum of all ranks' x, f32[4], if k is at least 1, which a run checks
    midway."""
    b = Builder()
    four, one, size, k = b.const(4), b.const(1), b.const(16), b.register()
    b.input("x", "f32", [four], "[4]")
    b.input("k", "i64", [], "[]")
    y = b.output("y", "f32", [four], "[4]")
    b.allocate(y, size)
    x, count_input = b.buffer(Input(0)), b.buffer(Input(1))
    total = Collective(CollectiveKind.ALL_REDUCE, Reduction.SUM, x, y, (four,), DTYPES["f32"], 0)
    b.body += [
        ReadInt(k, count_input, DTYPES["i64"], 0),
        Check(Relation.LE, one, k, "k is too small"),
        total,
        Wait(0, x, y),
    ]
    return b.program()


SCRIPT = """
import sys, time
import numpy as np
from tcc.runtime import comm as comms, load

with comms.open() as comm:
    module = load(sys.argv[1], comm=comm)
    x = np.ones(4, np.float32)
    assert module(x, np.array(1)).tolist() == [2, 2, 2, 2]
    # arrays that are refused leave the comm as it is
    try:
        module(np.ones(5, np.float32), np.array(1))
    except RuntimeError as error:
        assert "x" in str(error), error
    assert module(x, np.array(1)).tolist() == [2, 2, 2, 2]
    for k in (1 - comm.rank, 1):
        try:
            module(x, np.array(k))
        except RuntimeError as error:
            print(error)
"""


def test_a_run_that_fails_ends_the_runs_of_other_ranks(
    kernels: bytes, comm_library: Path, tmp_path: Path
) -> None:
    programs.link(checked(), kernels, tmp_path / "checked.so")
    first, second = run_ranks(2, SCRIPT, comm_library, tmp_path / "checked.so")
    said = "a run of rank 1 failed: k is too small (1, 0)"
    assert first.count(said) == 2  # in the run, and in all later runs
    assert second.startswith("k is too small (1, 0)")
    assert second.count(said) == 1


LATE = """
import sys, threading, time
import numpy as np
from tcc.runtime import comm as comms, load

with comms.open() as comm:
    module = load(sys.argv[1], comm=comm)
    x = np.ones(4, np.float32)
    assert module(x, np.array(1)).tolist() == [2, 2, 2, 2]
    if comm.rank == 0:
        began = time.monotonic()
        try:
            module.run({"x": x, "k": np.array(1)}, timeout=0.2)
        except TimeoutError as error:
            print(time.monotonic() - began, error)
    else:  # which does not come
        while True:
            try:
                comm.raise_error()
            except comms.CommError as error:
                print(error)
                break
            threading.Event().wait(0.01)
    try:
        module(x, np.array(1))
    except RuntimeError as error:
        print(error)
"""


def test_a_rank_that_waits_in_vain_ends_and_its_comm_fails(
    kernels: bytes, comm_library: Path, tmp_path: Path
) -> None:
    programs.link(checked(), kernels, tmp_path / "checked.so")
    first, second = run_ranks(2, LATE, comm_library, tmp_path / "checked.so")
    seconds, said = first.split(maxsplit=1)
    assert 0.2 < float(seconds) < 1.2
    assert said.startswith("the run took longer than 0.2 seconds")
    assert first.count("rank 0 was told to end; it is in all_reduce of 4 f32 by sum") == 1
    assert second.count("rank 0 was told to end; it is in all_reduce of 4 f32 by sum") == 2


NUMBERS = """
import sys
from tcc.runtime import comm as comms, load

module = load(sys.argv[1])
assert module.ranks == 0
try:
    module()
except RuntimeError as error:
    assert "there is no comm" in str(error), error
with comms.open() as comm:
    print(load(sys.argv[1], comm=comm)().tolist())
"""


def test_a_program_asks_for_its_rank(kernels: bytes, comm_library: Path, tmp_path: Path) -> None:
    """The program returns y = its rank, rank + 1 times."""
    b = Builder()
    rank, one, four = b.let(IntOp.RANK), b.const(1), b.const(4)
    count = b.let(IntOp.ADD, rank, one)
    y = b.output("y", "f32", [count], "[rank + 1]")
    b.allocate(y, b.let(IntOp.MUL, count, four))
    b.launch("fill", count, [y], [rank])
    programs.link(b.program(), kernels, tmp_path / "sums.so")
    outputs = run_ranks(3, NUMBERS, comm_library, tmp_path / "sums.so")
    assert outputs == ["[0.0]\n", "[1.0, 1.0]\n", "[2.0, 2.0, 2.0]\n"]


ONE = """
import sys
import numpy as np
from tcc.runtime import comm as comms, load

for path in sys.argv[1:]:
    with comms.open() as comm:
        try:
            print(load(path, comm=comm)(np.ones(4, np.float32)).tolist())
        except RuntimeError as error:
            print(str(error).splitlines()[0])
"""
X, Y, POOL, PART = range(4)


def start(send: int, receive: int, ticket: int = 0) -> Collective:
    kind, dtype = CollectiveKind.ALL_REDUCE, DTYPES["f32"]
    return Collective(kind, Reduction.SUM, send, receive, (1,), dtype, 0, 0, ticket)


WRONG: list[tuple[list[Instr], str]] = [
    ([start(X, Y), Wait(0, X, Y)], "[1.0, 1.0, 1.0, 1.0]"),
    ([start(X, Y), start(X, POOL), Wait(0, X, Y)], "starts a collective while it is under way"),
    ([Wait(1, X, Y)], "waits for a collective that it did not start"),
    ([start(X, Y), Wait(0, X, Y), Wait(0, X, Y)], "waits for a collective that it did not start"),
    ([start(X, Y)], "ends while a collective is under way"),
    ([start(X, POOL), Allocate(POOL, 2), Wait(0, X, POOL)], "frees memory that a collective uses"),
    ([start(POOL, Y), Allocate(POOL, 2), Wait(0, X, POOL)], "frees memory that a collective uses"),
    ([View(PART, POOL, 0), start(X, PART), Allocate(POOL, 2)], "frees memory that a collective"),
    ([start(X, POOL), Wait(0, X, POOL), Allocate(POOL, 2), start(X, Y), Wait(0, X, Y)], "[1.0, "),
]


def test_wrong_tickets_are_stopped(kernels: bytes, comm_library: Path, tmp_path: Path) -> None:
    """Nothing writes to memory that a run has freed."""
    paths = [tmp_path / f"wrong{number}.so" for number in range(len(WRONG))]
    for path, (body, _) in zip(paths, WRONG, strict=True):
        b = Builder()
        four, size = b.const(4), b.const(16)
        b.input("x", "f32", [four], "[4]")
        b.buffer(Input(0))
        b.output("y", "f32", [four], "[4]")
        b.buffer(Dynamic())
        b.buffer(Alias())
        b.allocate(Y, size)
        b.allocate(POOL, size)
        b.body += body
        programs.link(b.program(), kernels, path)
    (text,) = run_ranks(1, ONE, comm_library, *paths)
    for line, (_, said) in zip(text.splitlines(), WRONG, strict=True):
        assert said in line


def counted(kind: CollectiveKind) -> Program:
    """Returns y = a rank's result of a collective on two ranks, for x: f32[8] and counts from its
    caller."""
    b = Builder()
    eight, size = b.const(8), b.const(32)
    parts = 4 if kind.sends_blocks else 3
    b.input("x", "f32", [eight], "[8]")
    b.input("counts", "i64", [b.const(parts)], f"[{parts}]")
    x, count_input, y = b.buffer(Input(0)), b.buffer(Input(1)), b.output("y", "f32", [eight], "[8]")
    b.allocate(y, size)
    counts = tuple(b.register() for _ in range(parts))
    b.body += [ReadInt(n, count_input, DTYPES["i64"], at) for at, n in enumerate(counts)]
    b.body += [Collective(kind, Reduction.SUM, x, y, counts, DTYPES["f32"], 2), Wait(0, x, y)]
    return b.program()


COUNTED = """
import json, sys
import numpy as np
from tcc.runtime import comm as comms, load

_, folder, *cases = sys.argv
for case in cases:
    kind, *counts = json.loads(case)
    with comms.open(operation_seconds=20) as comm:
        module = load(f"{folder}/{kind}.so", comm=comm)
        try:
            y = module(np.arange(8, dtype=np.float32) + 10 * comm.rank, np.array(counts[comm.rank]))
            print(y[: sum(counts[comm.rank][-2:])].astype(int).tolist())
        except RuntimeError as error:
            print(str(error).replace(chr(10), " "))
"""
REFUSED = "more than a buffer holds, or a negative count"
FAILED = f"a run of rank 1 failed: .*{REFUSED}"
COUNTS = {
    # (the kind, both ranks' counts): the results or messages of both ranks
    '["ALL_TO_ALL", [1, 2, 1, 3], [3, 0, 2, 0]]': (r"^\[0, 10, 11, 12\]$", r"^\[1, 2\]$"),
    '["ALL_TO_ALL", [8, 0, 8, 0], [0, 8, 0, 8]]': (r"^\[0, .* 7\]$", r"^\[10, .* 17\]$"),
    '["ALL_GATHER", [3, 3, 1], [1, 3, 1]]': (r"^\[0, 1, 2, 10\]$",) * 2,
    '["ALL_GATHER", [0, 0, 8], [8, 0, 8]]': (r"^\[10, .* 17\]$",) * 2,
    '["ALL_TO_ALL", [1, 1, 1, 1], [1, -1, 1, 1]]': (FAILED, REFUSED),
    '["ALL_TO_ALL", [1, 1, 1, 1], [1, 1, 8, 1]]': (FAILED, REFUSED),
    f'["ALL_TO_ALL", [1, 1, 1, 1], [{1 << 62}, {1 << 62}, 1, 1]]': (FAILED, REFUSED),
    f'["ALL_GATHER", [1, 1, 1], [1, 1, {1 << 61}]]': (FAILED, REFUSED),
    '["ALL_TO_ALL", [1, 1, 1, 1], [2, 1, 1, 1]]': (
        r"rank 1 \(pid \d+\) sends 2 elements to rank 0 \(pid \d+\), which expects 1",
    ) * 2,
    '["ALL_GATHER", [1, 1, 1], [2, 1, 1]]': (
        "a run of rank 1 failed: rank 1 sends 2 elements to an all_gather, and receives 1 of them",
        "rank 1 sends 2 elements to an all_gather, and receives 1 of them",
    ),
    '["ALL_GATHER", [1, 1, 1], [2, 1, 2]]': (
        r"ranks differ: rank \d .* counts of hash .*, rank \d .* counts of hash ",
    ) * 2,
}  # fmt: skip


def test_counts_that_a_run_learns(kernels: bytes, comm_library: Path, tmp_path: Path) -> None:
    """Blocks may have any sizes; if ranks disagree or counts are impossible, all ranks raise an
    error."""
    for kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER):
        programs.link(counted(kind), kernels, tmp_path / f"{kind.name}.so")
    outputs = [text.splitlines() for text in run_ranks(2, COUNTED, comm_library, tmp_path, *COUNTS)]
    for rank, lines in enumerate(outputs):
        for line, said in zip(lines, COUNTS.values(), strict=True):
            assert re.search(said[rank], line), (rank, line, said)


# ---- groups of ranks -----------------------------------------------------------------------------

ROWS, COLUMNS = RankGroup("rows", ((0, 1), (2, 3))), RankGroup("columns", ((2, 0), (3, 1)))


def grouped(*groups: RankGroup) -> Program:
    """Returns a program that computes, for each group and kind of collective, an output of at most
    8 elements from x: f32[4]."""
    b = Builder()
    b.groups = groups
    sizes = {n: b.const(n) for n in (2, 4, 8)}
    b.input("x", "f32", [sizes[4]], "[4]")
    x = b.buffer(Input(0))
    for number, group in enumerate(groups):
        for kind in CollectiveKind:
            elements = 8 if kind is CollectiveKind.ALL_GATHER else 2 if kind is SCATTER else 4
            count = sizes[2 if kind.sends_blocks else 4]
            y = b.output(f"{group.name} {kind.name}", "f32", [sizes[elements]], "")
            b.allocate(y, b.const(4 * elements))
            root = int(kind is CollectiveKind.BROADCAST)
            operation = (kind, Reduction.SUM, x, y, (count,), DTYPES["f32"], 2, root)
            b.body += [Collective(*operation, group=number), Wait(0, x, y)]
    return b.program()


SCATTER = CollectiveKind.REDUCE_SCATTER


def test_groups_of_ranks_agree_with_numpy(
    kernels: bytes, comm_library: Path, tmp_path: Path
) -> None:
    """Results have the order of the groups' lists; a program with a rank's own list works with a
    program of all lists."""
    programs.link(grouped(ROWS, COLUMNS), kernels, tmp_path / "grouped.so")
    for rank in range(4):
        own_groups = [
            RankGroup(group.name, tuple(ranks for ranks in group.members if rank in ranks))
            for group in (ROWS, COLUMNS)
        ]
        is_whole = rank % 2
        program = grouped(*((ROWS, COLUMNS) if is_whole else own_groups))
        programs.link(program, kernels, tmp_path / f"own{rank}.so")
    xs = [np.arange(4, dtype=np.float32) + 10 * rank for rank in range(4)]
    feeds = [{"x": x} for x in xs]
    outputs = on_ranks(tmp_path, comm_library, {"grouped": feeds, "own{rank}": feeds})
    for group in (ROWS, COLUMNS):
        for kind in CollectiveKind:
            root = int(kind is CollectiveKind.BROADCAST)
            for ranks in group.members:
                reference = collected(kind, CollectiveAttrs(2, root=root), [xs[r] for r in ranks])
                for rank, array in zip(ranks, reference, strict=True):
                    results = outputs["grouped"][rank]
                    np.testing.assert_array_equal(results[f"{group.name} {kind.name}"], array)
    for is_whole, own_groups in zip(outputs["grouped"], outputs["own{rank}"], strict=True):
        for a, b in zip(is_whole.values(), own_groups.values(), strict=True):
            np.testing.assert_array_equal(a, b)


def in_symmetric_memory(*groups: RankGroup) -> Program:
    """Returns every kind of collective from and to symmetric memory, of x: f32[n], in turn among
    the groups."""
    b = Builder()
    b.groups = groups
    n, four = b.let(IntOp.DIM, 0, 0), b.const(4)
    half, twice = b.let(IntOp.FLOORDIV, n, b.const(2)), b.let(IntOp.ADD, n, n)
    size, room = b.let(IntOp.MUL, n, four), b.let(IntOp.MUL, twice, four)
    b.input("x", "f32", [n], "[n]")
    x = b.buffer(Input(0))
    send, receive = b.buffer(Symmetric(b.arena, size)), b.buffer(Symmetric(size, room))
    for number, kind in enumerate(CollectiveKind):
        count = twice if kind is CollectiveKind.ALL_GATHER else half if kind is SCATTER else n
        y, bytes_ = b.output(kind.name, "f32", [count], ""), b.let(IntOp.MUL, count, four)
        b.allocate(y, bytes_)
        b.launch("relu", n, [x, send], [])
        root, group = int(kind is CollectiveKind.BROADCAST), number % len(groups)
        block = half if kind.sends_blocks else n
        operation = (kind, Reduction.SUM, send, receive, (block,), DTYPES["f32"], 2, root)
        b.body += [Collective(*operation, group=group), Wait(0, send, receive)]
        b.body.append(Copy(y, receive, bytes_))
    return b.program()


APART = """
import sys
import numpy as np
from tcc.ir.program import CollectiveKind
from tcc.ops.collective import CollectiveAttrs
from tcc.runtime import comm as comms, load
from tests.lib.oracle.collectives import collected

with comms.open(operation_seconds=20) as comm:
    alone = len(sys.argv) == 3  # with one group
    rank, mesh = comm.rank, {"rows": [[0, 1], [2, 3]], "columns": [[2, 0], [3, 1]]}
    module = load(sys.argv[1], comm=comm)
    for n in (4, 30000, 8, 70000) if rank < 2 or not alone else (60,):
        found = module.run({"x": np.arange(n, dtype=np.float32) + 10 * rank})
        for number, kind in enumerate(CollectiveKind):
            names = sys.argv[2:]
            (ranks,) = (r for r in mesh[names[number % len(names)]] if rank in r)
            xs = [np.arange(n, dtype=np.float32) + 10 * r for r in ranks]
            want = collected(kind, CollectiveAttrs(2, root=int(kind.name == "BROADCAST")), xs)
            np.testing.assert_array_equal(found[kind.name], want[ranks.index(rank)], kind.name)
"""


def test_symmetric_memory_is_of_the_group_that_all_collectives_are_of(
    kernels: bytes, comm_library: Path, tmp_path: Path
) -> None:
    """Groups therefore run independently: any number of times, with different sizes."""
    programs.link(in_symmetric_memory(ROWS), kernels, tmp_path / "rows.so")
    run_ranks(4, APART, comm_library, tmp_path / "rows.so", "rows")


def test_groups_share_the_symmetric_memory_of_all_ranks(
    kernels: bytes, comm_library: Path, tmp_path: Path
) -> None:
    programs.link(in_symmetric_memory(ROWS, COLUMNS), kernels, tmp_path / "both.so")
    run_ranks(4, APART, comm_library, tmp_path / "both.so", "rows", "columns")


FAULTS = """
import os, signal, sys
import numpy as np
from tcc.runtime import comm as comms, load

_, whole, others, some = sys.argv
rank = int(os.environ["TCC_RANK"])

def refused(path, comm):
    try:
        load(path, comm=comm)(np.ones(4, np.float32))
    except RuntimeError as error:
        return str(error).replace("\\n", " ")

# all find out that one rank has no place, and that ranks are of different lists
for name, path in (("some", some), ("mixed", others if rank == 0 else whole)):
    with comms.open(rendezvous=os.environ["TCC_RENDEZVOUS"] + name) as comm:
        print(refused(path, comm), flush=True)  # rank 3 will be killed
with comms.open(operation_seconds=20) as comm:
    module = load(whole, comm=comm)
    module(np.ones(4, np.float32))
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    print(refused(whole, comm))
    print(refused(whole, comm))
"""


def test_failures_name_the_group(kernels: bytes, comm_library: Path, tmp_path: Path) -> None:
    """The text also names the death of a rank that shares no group with some of the others."""
    across = RankGroup("rows", ((0, 2), (1, 3)))
    groups_by_name = {
        "whole": (ROWS, COLUMNS),
        "other": (across,),
        "some": (RankGroup("some", ((0, 1),)),),
    }
    for name, groups in groups_by_name.items():
        programs.link(grouped(*groups), kernels, tmp_path / f"{name}.so")
    paths = (tmp_path / f"{name}.so" for name in groups_by_name)
    ended = run_ranks(4, FAULTS, comm_library, *paths, killed=[3])
    for rank, text in enumerate(ended):
        some, mixed, *dead = text.splitlines()
        of = f"rank {rank} in group some .the comm's ranks 0 1.: " if rank < 2 else ""
        assert re.match(of + "rank [23] has no place in group some of the model", some), some
        # rank 0 finds the fault; the first of the other groups may exist by then
        of = "rows .the comm's ranks 0 2" if rank == 0 else "(rows|columns) .the comm's ranks . ."
        assert re.match(f"rank {rank} in group {of}.: rank 0 gives a subgroup of ranks 0 2", mixed)
        assert "and one of these gives another" in mixed
        assert len(dead) == (0 if rank == 3 else 2)
        for line in dead:
            assert re.match(f"rank {rank} in group (rows|columns) .the comm's ranks ", line), line
            assert re.search("the process of rank [01] .*ended|a run of rank [012] failed", line), (
                line
            )
