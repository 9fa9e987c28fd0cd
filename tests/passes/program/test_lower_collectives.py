"""Graphs with collectives and their programs agree, evaluated by all ranks in lockstep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tcc.backends.artifact.encode_program import (
    COLLECTIVES,
    GROUPS,
    VERSION,
    encode_program,
)
from tcc.backends.artifact.planner import arena_planner
from tcc.errors import UserError
from tcc.ir.graph import Graph, GraphBuilder, Node, Value
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.graph.text import graph_text
from tcc.ir.index import Index, as_int, symbol
from tcc.ir.program import (
    Arena,
    Buffer,
    Check,
    Collective,
    CollectiveKind,
    Dynamic,
    Input,
    Instr,
    IntOp,
    Launch,
    Let,
    Program,
    RankGroup,
    ReadInt,
    Reduction,
    Relation,
    Symmetric,
    Wait,
)
from tcc.ir.program.lockstep import check_lockstep
from tcc.ir.program.text import program_text
from tcc.ir.program.verify import verify_program
from tcc.ir.types import BOOL, F32, I64, tensor
from tcc.ops import OPS
from tcc.ops.collective import CollectiveAttrs, collective_kind
from tcc.ops.operands import sizes
from tcc.passes.memory.in_place import update_in_place
from tcc.passes.memory.plan_arena import plan_arena
from tcc.passes.program.lower_graph import lower_program
from tcc.passes.program.lower_node import check_runnable, lower_node
from tcc.passes.program.overlap_collectives import overlap_collectives
from tcc.passes.tile.cpu.plan import CoreChooser
from tcc.schedule.cpu.core import CoreModel

from tests.lib.oracle.graph.parse import parse_graph
from tests.lib.oracle.graph_of_rank import evaluate_rank
from tests.lib.oracle.program.decode import decode_program
from tests.lib.oracle.program.evaluate import evaluate_program
from tests.lib.oracle.program.parse import parse_program
from tests.lib.oracle.ranks import Rank, Stuck, exchanged, in_lockstep
from tests.passes.placing import place_graph

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = Mapping[str, Array]
Members = tuple[tuple[int, ...], ...]
ATTRS = {
    "all_reduce": CollectiveAttrs(0, "max"),
    "reduce_scatter": CollectiveAttrs(2, "avg"),
    "all_gather": CollectiveAttrs(2),
    "all_to_all": CollectiveAttrs(2),
    "broadcast": CollectiveAttrs(0, "sum", 1),
}


def every_kind(group: str = "", members: Members = ()) -> Graph:
    """Returns each kind of collective between two kernels, over a symbolic number of rows."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, symbol("n", 1, 100), 3))
    (clipped,) = b.add(OPS["relu"], [x])
    outputs = []
    for name, attrs in ATTRS.items():
        if members:
            attrs = replace(attrs, ranks=2, group=group, members=members)
        (y,) = b.add(OPS[name], [clipped], attrs)
        outputs += b.add(OPS["add"], [y, y], names=[f"{name}_twice"])
    return b.finish(outputs)


def graph_on_rank(graph: Graph, feeds: Feeds, rank: Rank) -> dict[str, Array]:
    def exchange(node: Node, x: Array) -> Array:
        if node.op.name == "rank":
            return np.array(rank.number)
        rows = sizes(node.attrs.rows)
        return exchanged(rank, collective_kind(node.op.name), node.attrs, x, rows)

    return evaluate_rank(graph, feeds, exchange, rank.number)


def graph_on_ranks(graph: Graph, feeds: list[Feeds]) -> list[dict[str, Array]]:
    return in_lockstep(len(feeds), lambda rank: graph_on_rank(graph, feeds[rank.number], rank))


def sums(program: Program) -> list[Collective]:
    collectives = (i for i in program.body if isinstance(i, Collective))
    return [i for i in collectives if i.kind is CollectiveKind.ALL_REDUCE]


def test_ranks_agree_with_numpy_and_with_their_program() -> None:
    graph = every_kind()
    rng = np.random.default_rng(3)
    feeds = [{"x": rng.standard_normal((4, 3)).astype(np.float32)} for _ in range(2)]
    a, b = (np.maximum(f["x"], 0) for f in feeds)
    references = graph_on_ranks(graph, feeds)
    for rank, expected in enumerate(references):
        half = slice(2 * rank, 2 * rank + 2)
        for name, array in {
            "all_reduce": np.maximum(a, b),
            "reduce_scatter": (a[half] + b[half]) / 2,
            "all_gather": np.concatenate([a, b]),
            "all_to_all": np.concatenate([a[half], b[half]]),
            "broadcast": b,
        }.items():
            np.testing.assert_array_equal(expected[f"{name}_twice"], 2 * array, err_msg=name)

    program = check_program(graph, feeds, references)
    assert places(program) == [{Symmetric}]
    assert int.from_bytes(encode_program(program)[8:16], "little") == COLLECTIVES


def places(program: Program) -> list[set[type]]:
    """Returns the kinds of places that hold operands and results of sums."""
    ends = ((i.send, i.receive) for i in sums(program))
    return [{type(program.buffers[n].place) for n in pair} for pair in ends]


def check_program(graph: Graph, feeds: list[Feeds], want: list[dict[str, Array]]) -> Program:
    """Returns the program of a graph, after a check that it gives `want` on all ranks."""
    program, table, _ = lower_program(
        place_graph(graph), CoreChooser(CoreModel(16, 16)), lower_node
    )
    overlapped = overlap_collectives(program)
    separate = plan_arena(
        overlapped, arena_planner(), shared=False
    )  # without memory that all ranks read
    assert not any(isinstance(buffer.place, Symmetric) for buffer in separate.buffers)
    program = plan_arena(overlapped, arena_planner())
    kernels = [bound.kernel for bound in table.bounds]
    program = replace(program, kernels=tuple(f"k{n}" for n in range(len(kernels))))
    verify_program(program)
    check_lockstep(program, [kernel.results for kernel in kernels])
    assert decode_program(encode_program(program)) == program
    assert parse_program(program_text(program)) == program

    def run(rank: Rank) -> tuple[Array, ...]:
        def exchange(node: Collective, x: Array) -> Array:
            members = program.groups[node.group].members if node.group >= 0 else ()
            reduction = node.reduction.name.lower()
            attrs = CollectiveAttrs(node.ranks, reduction, node.root, members=members)
            return exchanged(rank, node.kind, attrs, x, node.counts, node.group)

        return evaluate_program(
            program,
            kernels,
            [feeds[rank.number][port.name] for port in program.inputs],
            np.zeros(0, np.uint8),
            exchange=exchange,
            rank=rank.number,
        )

    for results, expected in zip(in_lockstep(len(feeds), run), want, strict=True):
        for array, name in zip(results, [p.name for p in program.outputs], strict=True):
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
    return program


MESH: dict[str, Members] = {"rows": ((0, 1), (2, 3)), "columns": ((2, 0), (1, 3))}


@pytest.mark.parametrize("group", MESH)
def test_ranks_of_a_group_agree_with_a_job_of_their_own(group: str) -> None:
    rng = np.random.default_rng(4)
    feeds: list[Feeds] = [{"x": rng.standard_normal((4, 3)).astype(np.float32)} for _ in range(4)]
    graph = every_kind(group, MESH[group])
    assert graph_text(parse_graph(graph_text(graph), OPS, graph.store)) == graph_text(graph)
    references = graph_on_ranks(graph, feeds)
    for ranks in MESH[group]:
        group_results = graph_on_ranks(every_kind(), [feeds[rank] for rank in ranks])
        for rank, results in zip(ranks, group_results, strict=True):
            for name, array in results.items():
                np.testing.assert_array_equal(references[rank][name], array, err_msg=name)
    program = check_program(graph, feeds, references)
    assert program.groups == (RankGroup(group, MESH[group]),)
    assert places(program) == [{Symmetric}]
    assert int.from_bytes(encode_program(program)[8:16], "little") == GROUPS


def uneven(ranks: int) -> Graph:
    """Returns rows of x, exchanged between two kernels by `counts` (those sent, then those
    received); then an all_gather of x, of which rank r has `each[r]` rows."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, symbol("n", 0, 100), 3))
    counts, shares = b.input("counts", tensor(I64, 2 * ranks)), b.input("each", tensor(I64, ranks))

    def elements(name: str, vector: Value) -> tuple[Index, ...]:
        symbols = tuple(symbol(f"{name}{n}", 0, 1000) for n in range(2 * ranks))
        for n in range(as_int(vector.type.shape[0]) or 0):
            b.add(OPS["bind_size"], [vector], OPS["bind_size"].attrs(symbols[n], n))
        return symbols

    (twice,) = b.add(OPS["add"], [x, x])
    attrs = CollectiveAttrs(ranks, rows=elements("c", counts))
    (own_blocks,) = b.add(OPS["all_to_all"], [twice], attrs)
    attrs = replace(attrs, rows=(x.type.shape[0], *elements("e", shares)[:ranks]))
    (all_,) = b.add(OPS["all_gather"], [twice], attrs)
    outputs = [
        b.add(OPS["add"], [v, v], names=[name])[0]
        for name, v in (("own", own_blocks), ("all", all_))
    ]
    return b.finish(outputs)


def uneven_feeds(matrix: Sequence[Sequence[int]]) -> list[dict[str, Array]]:
    """Returns feeds of all ranks, where rank a sends `matrix[a][b]` rows to rank b."""
    sent, rng = np.array(matrix), np.random.default_rng(5)
    return [
        {
            "x": rng.standard_normal((row_counts.sum(), 3)).astype(np.float32),
            "counts": np.concatenate([row_counts, sent[:, rank]]),
            "each": sent.sum(1),
        }
        for rank, row_counts in enumerate(sent)
    ]


MATRIX = [[1, 2, 0], [0, 0, 0], [3, 1, 2]]


def test_ranks_exchange_blocks_of_any_sizes() -> None:
    graph, feeds = uneven(3), uneven_feeds(MATRIX)
    parts = [np.split(4 * f["x"], np.cumsum(n)[:-1]) for f, n in zip(feeds, MATRIX, strict=True)]
    references = graph_on_ranks(graph, feeds)
    for rank, expected in enumerate(references):
        np.testing.assert_array_equal(expected["own"], np.concatenate([p[rank] for p in parts]))
        np.testing.assert_array_equal(expected["all"], np.concatenate([4 * f["x"] for f in feeds]))
    assert graph_text(parse_graph(graph_text(graph), OPS, graph.store)) == graph_text(graph)
    program = check_program(graph, feeds, references)
    starts = [i for i in program.body if isinstance(i, Collective)]
    assert [len(start.counts) for start in starts] == [6, 4]


@pytest.mark.parametrize(
    ("rank", "name", "at", "value", "why"),
    [
        (0, "counts", 0, 2, "the blocks for 3 ranks must be all rows"),
        (1, "counts", 4, 9, r"1 sends 0 elements to 1, which expects 27"),
        (2, "counts", 1, -1, "-1"),
        (2, "each", 0, 5, "0 sends 9 elements to 2, which expects 15"),
    ],
)
def test_counts_of_blocks_that_cannot_be(
    rank: int, name: str, at: int, value: int, why: str
) -> None:
    """The counts do not add up to all rows, differ from another rank's, or are negative."""
    graph, feeds = uneven(3), uneven_feeds(MATRIX)
    references = graph_on_ranks(graph, feeds)
    feeds[rank][name][at] = value
    with pytest.raises((UserError, Stuck), match=why):
        check_program(graph, feeds, references)


def test_a_rank_whose_counts_are_refused_has_not_begun() -> None:
    """A collective starts early, but not before a check if it has several counts."""
    lets = [Let(n, IntOp.CONST, n) for n in range(4)]
    launch, check = Launch(0, 0, (2,), ()), Check(Relation.EQ, 0, 1, "no")
    buffers = tuple(map(Buffer, (Input(0), Dynamic(), Dynamic())))
    for counts in ((0,), (0, 1, 2, 3)):
        start = Collective(CollectiveKind.ALL_TO_ALL, Reduction.SUM, 0, 1, counts, F32, 2)
        body = (*lets, launch, check, start, Wait(0, 0, 1))
        instructions = overlap_collectives(Program((), (), 4, buffers, ("k",), 0, 0, body)).body
        due = (launch, check, start) if len(counts) > 1 else (start, launch, check)
        assert tuple(i for i in instructions if not isinstance(i, Let)) == (*due, Wait(0, 0, 1))


@pytest.mark.parametrize(("counts", "place"), [((0, 1, 2, 3), Arena), ((4, 4, 4, 4), Symmetric)])
def test_ranks_with_programs_of_their_own_share_no_memory(
    counts: tuple[int, ...], place: type
) -> None:
    """Constants that make blocks unequal differ by rank, so other ranks have other memory plans."""
    lets = [Let(n, IntOp.CONST, 64) for n in range(4)] + [ReadInt(4, 0, I64)]
    buffers = [Buffer(Input(0)), *(Buffer(Arena(-1, 0)) for _ in range(4))]
    body: list[Instr] = [*lets]
    for pair in ((1, 2), (3, 4)):
        body.append(Launch(0, 0, pair[:1], ()))
        kind = CollectiveKind.ALL_TO_ALL if pair[0] == 1 else CollectiveKind.ALL_REDUCE
        amounts = counts if pair[0] == 1 else (0,)
        body += [Collective(kind, Reduction.SUM, *pair, amounts, F32, 2), Wait(0, *pair)]
    program = Program((), (), 5, tuple(buffers), ("k",), 0, 0, tuple(body))
    place_types = [type(b.place) for b in plan_arena(program, arena_planner()).buffers]
    assert place_types == [Input, Arena, Arena, place, place]


def test_ranks_have_numbers() -> None:
    b = GraphBuilder("g")
    x, (number,) = b.input("x", tensor(F32, 3)), b.add(OPS["rank"], [])
    (wide,) = b.add(OPS["cast"], [number], OPS["cast"].attrs(F32))
    graph = b.finish(b.add(OPS["add"], [x, wide], names=["y"]))
    feeds: list[Feeds] = [{"x": np.arange(3, dtype=np.float32)} for _ in range(3)]
    references = graph_on_ranks(graph, feeds)
    assert [r["y"].tolist() for r in references] == [[n, n + 1, n + 2] for n in range(3)]
    program = check_program(graph, feeds, references)
    assert int.from_bytes(encode_program(program)[8:16], "little") == COLLECTIVES
    with pytest.raises(UserError, match="evaluated with all its ranks together"):
        evaluate_graph(graph, feeds[0])


def test_collectives_of_crossing_groups_overlap() -> None:
    """The groups are rows, columns and all ranks of a mesh: sums of two groups make a sum of
    all."""
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 64))
    attrs = {n: CollectiveAttrs(2, group=n, members=members) for n, members in MESH.items()}
    (rows,) = b.add(OPS["all_reduce"], [x], attrs["rows"])
    (columns,) = b.add(OPS["all_reduce"], [x], attrs["columns"])
    outputs = [
        *b.add(OPS["all_reduce"], [rows], attrs["columns"]),
        *b.add(OPS["all_reduce"], [columns], attrs["rows"]),
        *b.add(OPS["all_reduce"], [x], CollectiveAttrs()),
    ]
    graph = b.finish(outputs)
    feeds: list[Feeds] = [{"x": np.full(64, 1 << rank, np.float32)} for rank in range(4)]
    references = graph_on_ranks(graph, feeds)
    assert [set(r[name]) for r in references for name in r] == [{15.0}] * 12
    program = check_program(graph, feeds, references)
    assert [g.name for g in program.groups] == ["rows", "columns"]
    assert [s.group for s in sums(program)] == [0, 1, 1, 0, -1]
    assert max(s.ticket for s in sums(program)) > 0


def test_a_sum_lies_over_its_operand_where_that_dies() -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 64))
    (activated,) = b.add(OPS["relu"], [x])
    (once,) = b.add(OPS["all_reduce"], [activated], CollectiveAttrs())
    (again,) = b.add(OPS["all_reduce"], [once], CollectiveAttrs())
    graph = b.finish(b.add(OPS["add"], [again, activated]))
    program, table, _ = lower_program(
        place_graph(graph), CoreChooser(CoreModel(16, 16)), lower_node
    )
    program, _ = update_in_place(program, table.bounds)
    first, second = (i for i in program.body if isinstance(i, Collective))
    assert first.send != first.receive == second.send == second.receive


def test_a_program_without_collectives_keeps_its_version() -> None:
    b = GraphBuilder("g")
    graph = b.finish(b.add(OPS["relu"], [b.input("x", tensor(F32, 3))]))
    program, _, _ = lower_program(place_graph(graph), CoreChooser(CoreModel(16, 16)), lower_node)
    data = encode_program(plan_arena(program, arena_planner()))
    assert int.from_bytes(data[8:16], "little") == VERSION


def trips(own: bool) -> Graph:
    """Returns a loop with as many all_reduces as the element of `count` says: the rank's own, or
    the maximum over ranks."""
    inner = GraphBuilder("body")
    inner.input("i", tensor(I64))
    go, carried = inner.input("go", tensor(BOOL)), inner.input("a", tensor(F32, 2))
    body = inner.finish([go, *inner.add(OPS["all_reduce"], [carried], CollectiveAttrs())])
    b = GraphBuilder("g")
    x, count = b.input("x", tensor(F32, 2)), b.input("count", tensor(I64))
    if not own:
        (count,) = b.add(OPS["all_reduce"], [count], CollectiveAttrs(0, "max"))
    return b.finish(
        b.add(OPS["loop"], [count, None, x], OPS["loop"].attrs(body, (carried.type,)), names=["y"])
    )


def test_a_wait_that_never_ends_is_reported() -> None:
    feeds: list[Feeds] = [
        {"x": np.full(2, rank, np.float32), "count": np.array(1 + 2 * rank)} for rank in range(2)
    ]
    results = graph_on_ranks(trips(own=False), feeds)
    assert [r["y"].tolist() for r in results] == [[4.0, 4.0]] * 2
    with pytest.raises(Stuck, match=r"rank 1 waits in \('all_reduce'.*; rank 0 has ended"):
        graph_on_ranks(trips(own=True), feeds)
    wrong = [{"x": np.zeros((2 + 2 * rank, 3), np.float32)} for rank in range(2)]
    with pytest.raises(Stuck, match=r"\(2, 3\), None\); rank 1 waits in .* \(4, 3\)"):
        graph_on_ranks(every_kind(), wrong)


def test_one_rank_alone_is_refused() -> None:
    with pytest.raises(UserError, match="evaluated with all its ranks together"):
        evaluate_graph(every_kind(), {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("other", [CollectiveAttrs(3), CollectiveAttrs(2, group="tp")])
def test_groups_of_ranks_are_one(other: CollectiveAttrs) -> None:
    b = GraphBuilder("g")
    x = b.input("x", tensor(F32, 6))
    outputs = [
        *b.add(OPS["all_gather"], [x], CollectiveAttrs(2)),
        *b.add(OPS["all_gather"], [x], other),
    ]
    with pytest.raises(UserError, match="collectives of several groups of ranks") as caught:
        check_runnable(b.finish(outputs))
    assert "all_gather at" in caught.value.why
