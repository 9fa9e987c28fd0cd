"""The graph of an artifact has the dependencies that a byte-exact memory shows, and the right
measures."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import onnx
import pytest
import tcc
from programs import Builder, collectives, every_instruction, filling, handles, mlp, planned
from tcc.backends.artifact.encode_program import encode_program
from tcc.backends.artifact.kernel_needs import encode_needs
from tcc.backends.artifact.profile_facts import _numbered
from tcc.cli.kernels.forms import _stopped
from tcc.ir.program import (
    Alias,
    Arena,
    Branch,
    Copy,
    Input,
    Launch,
    Let,
    Loop,
    Program,
    View,
    constant_registers,
)
from tcc.ir.program.operands import operands, walk_instructions
from tcc.ir.program.table import Kind, row_of
from tcc.ir.tile import MemorySpace
from tcc.passes.memory.plan_arena import arena_lives
from tcc.runtime import Module, elf, host_program, sections
from tcc.runtime.buffer_lives import buffer_lives
from tcc.runtime.graph import NoGraphError, graph
from tcc.runtime.graph_builder import KernelGraphBuilder
from tcc.runtime.graph_measures import critical_path, peak_memory, step_seconds
from tcc.runtime.launch_needs import LaunchNeeds, read_needs
from tcc.runtime.profile_facts import unpacked_entry
from tcc.runtime.reports import InputError
from tcc.runtime.sections import MANIFEST_SECTION, PROGRAM_SECTION

# Two branches that join, a softmax between, and parts that are written into one buffer.
MODEL = """<ir_version: 9, opset_import: ["": 17]>
    parts (float[16, 64] x) => (float[16, 128] y)
    <float[64, 64] w = {0}> {
        a = MatMul(x, w)  b = Softmax(a)  c = MatMul(b, w)  d = Softmax <axis = 0> (x)
        e = Add(c, d)  y = Concat <axis = 1> (e, a)
    }"""
SYMBOLIC = """<ir_version: 9, opset_import: ["": 17]>
    layers (float[batch, 8] x) => (float[batch, 8] y, int64[batch, 8] order)
    <float[8, 8] w = {0}> {
        a = MatMul(x, w)  b = Softmax(a)  c = MatMul(b, w)  k = Constant <value_ints = [8]> ()
        y, order = TopK(c, k)
    }"""


def written(text: str, folder: Path, count: int) -> Path:
    """Writes the model with a weight of `count` elements; returns the path."""
    values = "{" + ", ".join(str((37 * n % 1009 + 1) / 1e5) for n in range(count)) + "}"
    model = onnx.parser.parse_model(text.replace("{0}", values))
    onnx.save(model, folder / f"{model.graph.name}.onnx")
    return folder / f"{model.graph.name}.onnx"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = written(MODEL, tmp_path_factory.mktemp("graph"), 64 * 64)
    # The processor is fixed, because on others one kernel without buffers may do everything.
    tcc.compile(path, cpu="x86-64-v3").save(path.with_suffix(".so"))
    return path.with_suffix(".so")


@pytest.fixture(scope="module")
def symbolic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = written(SYMBOLIC, tmp_path_factory.mktemp("graph"), 64)
    tcc.compile(path).save(path.with_suffix(".so"))
    return path.with_suffix(".so")


# ---- reading the file ----------------------------------------------------------------------------


def test_the_sections_are_those_that_the_link_writes() -> None:
    assert sections.MANIFEST_SECTION == MANIFEST_SECTION
    assert sections.PROGRAM_SECTION == PROGRAM_SECTION


PROGRAMS = (
    every_instruction(), collectives(), filling(), filling(dynamic=True), mlp()[0], planned(),
    handles(),
)  # fmt: skip
NUMBERED = {kind.name.lower() for kind in Kind if kind.letter}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_read_as_the_compiler_wrote_it(program: Program) -> None:
    """The two readers share no code, and agree on names, operands and constants."""
    read = host_program.read_program(encode_program(program))
    ours = list(host_program.walk(read.body))
    theirs = list(walk_instructions(program.body))
    assert [i.name for i in ours] == [row_of(i).name for i in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(other, Let):  # its operation determines the kinds of its operands
            numbered = [(k.name.lower(), n) for k, n in operands(other) if k.letter]
            assert [pair for pair in mine.operands if pair[0] in NUMBERED] == numbered
    places = [(row_of(b.place).name, b.label) for b in program.buffers]
    assert [(b.place, b.label) for b in read.buffers] == places
    values = host_program.register_values(read, {})
    assert constant_registers(program).items() <= values.items()


def test_changed_programs_are_read_or_refused() -> None:
    """Every word is changed in turn, with a right checksum: the reader raises ValueError, or
    returns a program."""
    clean = np.frombuffer(encode_program(every_instruction()), "<i8")
    refusals = 0
    for place in range(5, int(clean[2])):
        for value in (-1, 1 << 40, 7):
            words = clean.copy()
            words[place] = value
            data = bytearray(words.tobytes())
            data[32:40] = zlib.crc32(data[40:]).to_bytes(8, "little")
            try:
                read = host_program.read_program(bytes(data))
                builder = KernelGraphBuilder(read, host_program.register_values(read, {}), NEEDS)
                builder.build()
            except (ValueError, LookupError):
                refusals += 1
    assert refusals > 100


NEEDS = [LaunchNeeds(0, (), (False, True), ((False, 4), (False, 4)))] * 8


def test_needs_are_those_of_the_kernels(tmp_path: Path) -> None:
    """The table that the runtime checks says which buffers a kernel writes, and how many bytes."""
    lowered: Any = _stopped(written(SYMBOLIC, tmp_path, 64), "describe-ports", ())
    needs = read_needs(encode_needs(lowered.kernels, 64), len(lowered.kernels))
    assert needs is not None
    for kernel, need in zip(lowered.kernels, needs, strict=True):
        scopes = [buffer.scope is MemorySpace.OUTPUT for buffer in kernel.buffers]
        assert list(need.writes) == scopes
        assert True in scopes
        assert False in scopes
        assert need.bytes_at([16])[-1] == 16 * 8 * 4  # the results are [batch, 8] floats
        assert need.bytes_at([None])[-1] is None


# ---- dependencies --------------------------------------------------------------------------------


class Bytes:
    """Memory that records, for each byte, the steps that may have written it last."""

    def __init__(self, size: int) -> None:
        self.writers: list[set[int]] = [set() for _ in range(size)]

    def of(self, part: range) -> set[int]:
        return set().union(*(self.writers[place] for place in part))

    def write(self, part: range, step: int) -> None:
        for place in part:
            self.writers[place] = {step}


SIZE, ROOM = 8, 16  # bytes of a buffer, and of a base that has two views


def random_program(seed: int) -> tuple[Program, list[LaunchNeeds]]:
    """Returns random launches on bases and on views of their halves, some in a branch."""
    draw, b = np.random.default_rng(seed), Builder()
    one = b.const(1)
    b.input("flag", "bool", [], "[]")
    flag = b.buffer(Input(0))
    bases = [b.buffer(Arena(b.const(ROOM * n), b.const(ROOM))) for n in range(4)]
    views = [b.buffer(Alias()) for _ in range(2 * len(bases))]
    for number, view in enumerate(views):
        b.body.append(View(view, bases[number // 2], b.const(SIZE * (number % 2))))
    needs = []
    for kernel in range(8):
        reads, writes = int(draw.integers(0, 3)), int(draw.integers(1, 3))
        is_full = kernel % 2 == 0
        flags = (False,) * reads + (True,) * writes
        size = ROOM if is_full else SIZE
        needs.append(LaunchNeeds(0, (), flags, ((False, size),) * len(flags)))

    def launch() -> Launch:
        kernel = int(draw.integers(8))
        choices = bases if kernel % 2 == 0 else views
        count = len(needs[kernel].writes)
        buffers = [choices[int(n)] for n in draw.choice(len(choices), count, replace=False)]
        return Launch(kernel, one, tuple(buffers), (), -1)

    for _ in range(int(draw.integers(4, 12))):
        if draw.random() < 0.25:
            ways = [tuple(launch() for _ in range(int(draw.integers(0, 3)))) for _ in range(2)]
            b.body.append(Branch(flag, *ways))
        else:
            b.body.append(launch())
    return b.program(), needs


def ways(body: Sequence[Any]) -> Iterator[list[Launch]]:
    """Yields the launches of each path through a program's branches."""
    paths: list[list[Launch]] = [[]]
    for instr in body:
        if isinstance(instr, Branch):
            paths = [[*path, *way] for path in paths for way in (instr.then, instr.otherwise)]
        elif isinstance(instr, Launch):
            paths = [[*path, instr] for path in paths]
    yield from paths


def true_dependencies(
    program: Program, needs: Sequence[LaunchNeeds]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Returns, over all paths, the steps whose bytes each step reads, and the steps whose bytes it
    overwrites."""
    launches = [i for i in walk_instructions(program.body) if isinstance(i, Launch)]
    numbers = {id(launch): n for n, launch in enumerate(launches)}
    constants = constant_registers(program)
    starts: dict[int, int] = {}
    for number, buffer in enumerate(program.buffers):
        if isinstance(buffer.place, Arena):
            starts[number] = constants[buffer.place.offset]
    for instr in program.body:
        if isinstance(instr, View):
            starts[instr.buffer] = starts[instr.base] + constants[instr.offset]
    read: dict[int, set[int]] = {n: set() for n in numbers.values()}
    overwritten: dict[int, set[int]] = {n: set() for n in numbers.values()}
    for path in ways(program.body):
        memory = Bytes(4 * ROOM)
        for launch in path:
            need, step = needs[launch.kernel], numbers[id(launch)]
            sizes = [size for _, size in need.amounts]
            rows = [
                (range(starts[b], starts[b] + size), flag)
                for b, flag, size in zip(launch.buffers, need.writes, sizes, strict=True)
            ]
            for part, flag in rows:
                (overwritten if flag else read)[step] |= memory.of(part)
            for part, flag in rows:
                if flag:
                    memory.write(part, step)
    return read, overwritten


def producers(built: networkx.DiGraph, step: int, *kinds: str) -> set[int]:
    """Returns the steps that wrote the values to which a step has edges of the given kinds."""
    node = f"s{step}"
    values = [v for v in built.predecessors(node) if built.edges[v, node]["kind"] in kinds]
    return {int(p[1:]) for value in values for p in built.predecessors(value)}


@pytest.mark.parametrize("seed", range(60))
def test_a_step_depends_on_all_whose_bytes_it_reads_or_overwrites(seed: int) -> None:
    program, needs = random_program(seed)
    read_back = host_program.read_program(encode_program(program))
    builder = KernelGraphBuilder(read_back, host_program.register_values(read_back, {}), needs)
    builder.build()
    built = builder.graph
    assert networkx.is_directed_acyclic_graph(built)
    read, overwritten = true_dependencies(program, needs)
    for step in read:
        assert read[step] <= producers(built, step, "read")
        assert overwritten[step] - {step} <= producers(built, step, "read", "update")
    # if no branch and no partial write hides a write, there are no other edges
    kernels = [i.kernel for i in walk_instructions(program.body) if isinstance(i, Launch)]
    straight = not any(isinstance(i, Branch) for i in program.body)
    if straight and all(kernel % 2 == 0 for kernel in kernels):
        for step in read:
            assert producers(built, step, "read") == read[step]


def test_a_loop_stands_once_and_has_no_cycle() -> None:
    b = Builder()
    size, trips = b.const(4), b.const(5)
    b.input("x", "f32", [size], "[4]")
    x, room = b.buffer(Input(0), "x"), b.buffer(Arena(b.const(0), b.const(16)), "room")
    y = b.output("y", "f32", [size], "[4]")
    counter = b.register()
    launch = Launch(0, size, (room, room), (), -1)
    room_size = b.const(16)
    loop = Loop(trips, -1, counter, (launch,))
    b.body += [Copy(room, x, room_size), loop, Copy(y, room, room_size)]
    program = host_program.read_program(encode_program(b.program()))
    needs = [LaunchNeeds(0, (), (False, True), ((False, 16), (False, 16)))] * 8
    builder = KernelGraphBuilder(program, host_program.register_values(program, {}), needs)
    builder.build()
    step = builder.graph.nodes["s0"]
    assert (step["launches"], step["region"]) == (5, "loop 0")
    assert networkx.is_directed_acyclic_graph(builder.graph)
    assert networkx.has_path(builder.graph, "c0", "s0")
    assert networkx.has_path(builder.graph, "s0", "c1")
    assert networkx.shortest_path(builder.graph, "b0", "c0") == ["b0", "c0"]


def looping(seed: int) -> Program:
    """Returns launches on four buffers, before, in and after two loops, of which one is in a
    branch."""
    draw, b = np.random.default_rng(seed), Builder()
    one = b.const(1)
    b.input("flag", "bool", [], "[]")
    flag = b.buffer(Input(0))
    rooms = [b.buffer(Arena(b.const(64 * n), b.const(64))) for n in range(4)]
    view = b.buffer(Alias())

    def launches() -> tuple[Launch, ...]:
        buffers = [int(n) for n in draw.choice([*rooms, view], int(draw.integers(0, 3)))]
        return tuple(Launch(0, one, (buffer,), (), -1) for buffer in buffers)

    b.body.append(View(view, rooms[0], b.const(0)))
    b.body += launches()
    b.body.append(Loop(one, rooms[1], b.register(), (*launches(), *launches())))
    b.body += launches()
    b.body.append(Branch(flag, (Loop(one, -1, b.register(), launches()),), launches()))
    b.body += launches()
    return b.program()


@pytest.mark.parametrize("seed", range(30))
def test_lives_are_those_for_which_the_compiler_planned(seed: int) -> None:
    """The planner counts positions of instructions; a lifetime in steps lies between them."""
    program = looping(seed)
    steps = [n for n, i in enumerate(_numbered(program.body)) if isinstance(i, Launch)]
    lives = buffer_lives(host_program.read_program(encode_program(program)))
    for buffer, life in arena_lives(program.body)[0].items():
        first = sum(place < life.first for place in steps)
        last = sum(place <= life.last for place in steps) - 1
        assert lives[buffer] == (first, last)


def test_data_that_decide_a_size_control_the_step() -> None:
    program = host_program.read_program(encode_program(filling()))
    builder = KernelGraphBuilder(program, host_program.register_values(program, {}), NEEDS_OF_FILL)
    builder.build()
    assert builder.graph.edges["b0", "s0"]["kind"] == "control"


NEEDS_OF_FILL = [LaunchNeeds(1, (), (True,), ((False, 0),))] * 8


# ---- whole artifacts -----------------------------------------------------------------------------


def test_a_compiled_model_has_its_steps_and_memory(parts: Path) -> None:
    built = graph(parts)
    steps = {n: d for n, d in built.nodes(data=True) if d["kind"] != "buffer"}
    (variant,) = tcc.load(parts).manifest["variants"]
    assert len(steps) == len(variant["steps"])
    assert sum(d["predicted"] for d in steps.values()) == pytest.approx(
        sum(variant["kernels"][k]["seconds"] for k in variant["steps"] if isinstance(k, int))
    )
    names = " ".join(d["location"] for d in steps.values())
    assert "Softmax" in names
    inputs = [d for _, d in built.nodes(data=True) if d.get("place") == "input"]
    assert [(d["label"], d["dtype"], d["shape"], d["bytes"]) for d in inputs] == [
        ("x", "f32", [16, 64], 16 * 64 * 4)
    ]
    outputs = [n for n, d in built.nodes(data=True) if d.get("place") == "output"]
    last = networkx.descendants(built, "b0")
    assert set(outputs) <= last


def test_live_bytes_agree_with_the_manifest(parts: Path) -> None:
    """The compiler counts live bytes in another way; the sums agree in each step."""
    built = graph(parts)
    (variant,) = tcc.load(parts).manifest["variants"]
    _, live = unpacked_entry(variant["profile"], len(variant["steps"]))
    buffers = [d for _, d in built.nodes(data=True) if "first" in d and d["version"] == 1]
    for step, expected in enumerate(live):
        assert sum(d["bytes"] for d in buffers if d["first"] <= step <= d["last"]) == expected
    peak = peak_memory(built)
    assert peak is not None
    assert (peak.step, peak.bytes) == (live.index(max(live)), max(live))
    assert sum(size for *_, size in peak.buffers) == peak.bytes
    sizes = [size for *_, size in peak.buffers]
    assert sizes == sorted(sizes, reverse=True)


def test_symbolic_sizes_are_typical_or_those_of_shapes(symbolic: Path) -> None:
    typical, exact = graph(symbolic), graph(symbolic, shapes={"x": (4, 8)})
    assert typical.nodes["s0"]["typical"]
    assert "typical" not in exact.nodes["s0"]
    assert exact.nodes["s0"]["flops"] >= 2 * 4 * 8 * 8
    assert exact.nodes["b0"]["bytes"] == 4 * 8 * 4
    assert "bytes" not in typical.nodes["b0"]
    doubled = graph(symbolic, shapes={"x": (8, 8)})
    assert doubled.nodes["s0"]["flops"] == 2 * exact.nodes["s0"]["flops"]


def test_a_profile_gives_its_times(symbolic: Path) -> None:
    module = tcc.load(symbolic, threads=1)
    profile = tcc.profile(module, {"x": np.ones((4, 8), np.float32)}, runs=2)
    built = tcc.graph(module, profile)
    for step in profile.steps:
        assert built.nodes[f"s{step.number}"]["measured"] == step.seconds
    assert built.graph["seconds"] == profile.seconds
    assert built.nodes["b0"]["bytes"] == 4 * 8 * 4  # the profile's sizes
    assert profile.graph is not None
    assert networkx.utils.graphs_equal(profile.graph, built)
    path = critical_path(built)
    assert (
        0 < path.seconds <= path.all_seconds == pytest.approx(sum(s.seconds for s in profile.steps))
    )


def test_a_profile_of_another_artifact_is_refused(symbolic: Path, parts: Path) -> None:
    module = tcc.load(symbolic, threads=1)
    profile = tcc.profile(module, {"x": np.ones((4, 8), np.float32)}, runs=1)
    with pytest.raises(InputError, match="the profile is of another artifact"):
        graph(parts, profile)


def test_the_file_of_another_machine_has_a_graph(parts: Path, tmp_path: Path) -> None:
    data = bytearray(parts.read_bytes())
    data[18:20] = (183 if data[18] == 62 else 62).to_bytes(2, "little")
    (tmp_path / "foreign.so").write_bytes(data)
    assert networkx.utils.graphs_equal(graph(tmp_path / "foreign.so"), graph(parts))


def test_a_hand_made_artifact_has_none(linked: Callable[..., Module]) -> None:
    b = Builder()
    size = b.const(8)
    b.input("x", "f32", [size], "[8]")
    y = b.output("y", "f32", [size], "[8]")
    b.allocate(y, b.const(32))
    b.launch("relu", size, [b.buffer(Input(0)), y])
    with pytest.raises(NoGraphError, match="does not describe its graph"):
        graph(linked(b))


@pytest.mark.parametrize(
    "content", [b"", b"text\n" * 40, b"\x7fELF\2\1" + bytes(58), b"\x7fELF" + bytes(range(60))]
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.so").write_bytes(content)
    with pytest.raises(InputError, match="not a tcc artifact"):
        graph(tmp_path / "m.so")
    with pytest.raises(InputError, match="cannot be read"):
        graph(tmp_path / "absent.so")


def test_changed_files_are_graphs_or_refused(symbolic: Path, tmp_path: Path) -> None:
    """Random bytes of the manifest, the program and the needs change."""
    clean, path, draw = symbolic.read_bytes(), tmp_path / "m.so", np.random.default_rng(0)
    refusals = 0
    for name in (".tcc.manifest", ".tcc.program0", ".tcc.needs0"):
        with symbolic.open("rb") as file:
            content = elf.read_section(file, name, 1 << 24)
        assert content
        begin = clean.index(content)
        for _ in range(60):
            data = bytearray(clean)
            data[begin + int(draw.integers(len(content) - 1))] = int(draw.integers(256))
            path.write_bytes(data)
            try:
                assert networkx.is_directed_acyclic_graph(graph(path))
            except InputError:
                refusals += 1
    assert refusals > 60


# ---- measures ------------------------------------------------------------------------------------


def random_graph(seed: int) -> networkx.DiGraph:
    draw = np.random.default_rng(seed)
    built = networkx.DiGraph()
    for step in range(10):
        built.add_node(f"s{step}", kind="kernel", step=step, predicted=float(draw.integers(1, 100)))
        for earlier in range(step):
            if draw.random() < 0.25:
                value = f"b{step * 10 + earlier}"
                built.add_node(value, kind="buffer", version=1)
                built.add_edge(f"s{earlier}", value)
                built.add_edge(value, f"s{step}")
    return built


def chains(built: networkx.DiGraph, node: str) -> Iterator[list[str]]:
    yield [node]
    for following in built.successors(node):
        yield from ([node, *chain] for chain in chains(built, following))


@pytest.mark.parametrize("seed", range(30))
def test_the_critical_path_is_the_longest_chain(seed: int) -> None:
    """The test lists all chains of a small graph."""
    built = random_graph(seed)
    path = critical_path(built)
    totals = [
        sum(step_seconds(built, node) for node in chain)
        for begin in built
        for chain in chains(built, begin)
    ]
    assert path.seconds == max(totals)
    assert sum(step_seconds(built, node) for node in path.nodes) == path.seconds
    assert path.all_seconds == sum(
        d["predicted"] for _, d in built.nodes(data=True) if "predicted" in d
    )


def test_optional_steps_take_no_predicted_time() -> None:
    built = networkx.DiGraph()
    built.add_node("s0", kind="kernel", step=0, predicted=1.0, optional=True)
    assert critical_path(built).seconds == 0
    built.nodes["s0"]["measured"] = 0.5
    assert critical_path(built).seconds == 0.5


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_that_of_bytes_counted_one_by_one(seed: int) -> None:
    draw = np.random.default_rng(seed)
    built, steps = networkx.DiGraph(), 8
    memory = np.zeros((steps, 400), bool)
    for number in range(6):
        first, offset = int(draw.integers(steps)), int(draw.integers(300))
        last, size = int(draw.integers(first, steps)), int(draw.integers(1, 100))
        memory[first : last + 1, offset : offset + size] = True
        built.add_node(
            f"b{number}", kind="buffer", version=1, label=f"v{number}", bytes=size, offset=offset,
            first=first, last=last,
        )  # fmt: skip
    peak = peak_memory(built)
    assert peak is not None
    counts = memory.sum(axis=1)
    assert (peak.step, peak.bytes) == (int(counts.argmax()), int(counts.max()))
    live = {n for n, d in built.nodes(data=True) if d["first"] <= peak.step <= d["last"]}
    assert {node for _, node, _ in peak.buffers} == live


def test_no_arena_has_no_peak() -> None:
    assert peak_memory(networkx.DiGraph()) is None
    built = networkx.DiGraph()
    built.add_node("b0", kind="buffer", version=1, label="x", first=0, last=1)
    assert peak_memory(built) is None
