"""Compiled models with collectives run on ranks that are processes of this machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tcc
from onnx import TensorProto, helper
from tcc.driver import compile_model, load_model
from tcc.options import read_options
from tcc.runtime import abi

from tests.lib.agreement import BOOL, FLOAT, INT64, value
from tests.ranks import on_ranks, run_ranks

node = helper.make_node


def microsoft(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> Any:
    return node(op, list(inputs), list(outputs), domain="com.microsoft", **attrs)


def model_of(
    name: str, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compiled(folder: Path, name: str, model: Any) -> Path:
    path = folder / f"{name}.so"
    compile_model(model, read_options({"jobs": 1}), path)
    return path


def every_kind() -> onnx.ModelProto:
    """Returns a model with each collective of ONNX Runtime between kernels, over a symbolic number
    of rows."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        microsoft("AllReduce", ["r"], ["total_"]),
        node("Add", ["total_", "r"], ["total"]),
        microsoft("AllGather", ["r"], ["rows_"], group_size=2, axis=0),
        node("Neg", ["rows_"], ["rows"]),
        microsoft("AllGather", ["r"], ["columns"], group_size=2),
        microsoft("AllToAll", ["x"], ["exchanged"], group_size=2),
    ]
    outputs = [
        value("total", FLOAT, ["n", 3]),
        value("rows", FLOAT, None),
        value("columns", FLOAT, None),
        value("exchanged", FLOAT, ["n", 3]),
    ]
    return model_of("kinds", nodes, [value("x", FLOAT, ["n", 3])], outputs)


def controlled() -> onnx.ModelProto:
    """Returns a loop and a branch whose trip count and condition all ranks compute from their
    sum."""
    step = helper.make_graph(
        [
            microsoft("AllReduce", ["carried"], ["sum"]),
            node("Identity", ["go"], ["go_on"]),
        ],
        "step",
        [value("i", INT64, []), value("go", BOOL, []), value("carried", FLOAT, [2])],
        [value("go_on", BOOL, []), value("sum", FLOAT, [2])],
    )
    then = helper.make_graph(
        [microsoft("AllReduce", ["looped"], ["twice"])], "then", [], [value("twice", FLOAT, [2])]
    )
    other = helper.make_graph(
        [node("Neg", ["looped"], ["minus"])], "other", [], [value("minus", FLOAT, [2])]
    )
    nodes = [
        microsoft("AllReduce", ["count"], ["counts"]),
        node("Cast", ["counts"], ["trips"], to=TensorProto.INT64),
        node("Loop", ["trips", "", "x"], ["looped"], body=step),
        node("Constant", [], ["limit"], value_float=3.5),
        node("Less", ["counts", "limit"], ["few"]),
        node("If", ["few"], ["y"], then_branch=then, else_branch=other),
    ]
    inputs = [value("x", FLOAT, [2]), value("count", FLOAT, [])]
    return model_of("control", nodes, inputs, [value("y", FLOAT, [2])])


def typed() -> onnx.ModelProto:
    """Returns sums in several element types and of a constant; the number of rows is symbolic and
    may be 0."""
    nodes, outputs = [microsoft("AllReduce", ["w"], ["weights"])], [value("weights", FLOAT, [3])]
    for kind in ("FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64"):
        nodes += [
            node("Cast", ["x"], [f"{kind}_x"], to=TensorProto.DataType.Value(kind)),
            microsoft("AllReduce", [f"{kind}_x"], [f"{kind}_sum"]),
            node("Cast", [f"{kind}_sum"], [kind], to=TensorProto.FLOAT),
        ]
        outputs.append(value(kind, FLOAT, ["n", 3]))
    model = model_of("typed", nodes, [value("x", FLOAT, ["n", 3])], outputs)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    )
    return model


def test_element_types_and_no_elements(comm_library: Path, tmp_path: Path) -> None:
    compiled(tmp_path, "typed", typed())
    os.link(tmp_path / "typed.so", tmp_path / "empty.so")
    xs = [np.array([[1, 2, 3 + rank]], np.float32) for rank in range(3)]
    none = [{"x": np.zeros((0, 3), np.float32)}] * 3
    outputs = on_ranks(tmp_path, comm_library, {"typed": [{"x": x} for x in xs], "empty": none})
    for results in outputs["typed"]:
        assert results.pop("weights").tolist() == [0, 3, 6]
        assert [x.tolist() for x in results.values()] == [[[3, 6, 12]]] * 7
    for results in outputs["empty"]:
        assert results.pop("weights").tolist() == [0, 3, 6]
        assert [x.shape for x in results.values()] == [(0, 3)] * 7


def test_models_of_onnx_agree_with_numpy(comm_library: Path, tmp_path: Path) -> None:
    compiled(tmp_path, "kinds", every_kind())
    compiled(tmp_path, "control", controlled())
    rng = np.random.default_rng(2)
    xs = [rng.standard_normal((4, 3)).astype(np.float32) for _ in range(2)]
    few, many = (
        [{"x": np.array([1, rank], np.float32), "count": np.float32(n)} for rank in range(2)]
        for n in (1, 2)
    )
    os.link(tmp_path / "control.so", tmp_path / "again.so")
    outputs = on_ranks(
        tmp_path, comm_library, {"kinds": [{"x": x} for x in xs], "control": few, "again": many}
    )
    a, b = (np.maximum(x, 0) for x in xs)
    for rank, (x, results) in enumerate(zip(xs, outputs["kinds"], strict=True)):
        half = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(results["total"], a + b + np.maximum(x, 0))
        np.testing.assert_array_equal(results["rows"], -np.concatenate([a, b]))
        np.testing.assert_array_equal(results["columns"], np.concatenate([a, b], 1))
        reference = np.concatenate([xs[0][half], xs[1][half]])
        np.testing.assert_array_equal(results["exchanged"], reference)
    # two trips double the sum (2, 1) once, and the branch doubles it once more; four trips double
    # it three times
    assert [r["y"].tolist() for r in outputs["control"]] == [[8.0, 4.0]] * 2
    assert [r["y"].tolist() for r in outputs["again"]] == [[-16.0, -8.0]] * 2


# ---- requirements of a run -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("kinds"), "kinds", every_kind())


def test_a_run_without_a_comm_says_how_to_start_it(kinds: Path) -> None:
    module = tcc.load(kinds)
    with pytest.raises(
        tcc.UserError, match=r"no comm: start its ranks with tcc run --nproc, mpirun"
    ):
        module(np.zeros((2, 3), np.float32))


def test_a_comm_of_another_version_is_refused(kinds: Path) -> None:
    class Table(ctypes.Structure):
        _fields_ = (("struct_size", ctypes.c_uint32), ("version", ctypes.c_uint32))

    table = Table(100, 99)
    comm = ctypes.pointer(table)  # a comm begins with the address of its table

    class Comm:  # no real comm has another version
        handle = ctypes.addressof(comm)

    with pytest.raises(tcc.UserError, match="the comm has version 99, this model knows version 1"):
        tcc.load(kinds, comm=Comm())  # type: ignore[arg-type]


def test_artifacts_link_nothing_of_comms(kinds: Path) -> None:
    names = ctypes.CDLL(str(kinds))
    assert not hasattr(names, "tcc_comm_all_reduce")
    assert b"libtcc_comm" not in kinds.read_bytes()
    assert b"libmpi" not in kinds.read_bytes()


ONE = """
import sys
import numpy as np
import tcc
from tcc.runtime import comm as comms

x = np.ones((2, 3), np.float32)
with comms.open() as comm:
    assert tcc.compile(sys.argv[2], jobs=1, comm=comm)(x).tolist() == x.tolist()
    try:
        tcc.load(sys.argv[1], comm=comm)(x)
    except tcc.UserError as error:
        assert "is for 2 ranks, its comm has 1" in str(error), error
        print("refused")
"""


def test_sizes_of_comms(comm_library: Path, kinds: Path, tmp_path: Path) -> None:
    """A sum takes a comm of any size; an exchange of blocks takes a comm of its own size only."""
    ports = [value(name, FLOAT, [2, 3]) for name in "xy"]
    onnx.save(
        model_of("sum", [microsoft("AllReduce", ["x"], ["y"])], ports[:1], ports[1:]),
        tmp_path / "sum.onnx",
    )
    lines = run_ranks(1, ONE, comm_library, kinds, tmp_path / "sum.onnx")
    assert lines == ["refused\n"]


SHARED = """
import sys, threading
import numpy as np
import tcc
from tcc.runtime import abi, comm as comms, load

comm = comms.open()
comm.share()
module = tcc.load(sys.argv[1])
x = np.full((2, 3), 1 + comm.rank, np.float32)
total = np.full((2, 3), 4 + comm.rank).tolist()

# threads take turns, for a comm serves one at a time: in Python, and in C
def call():
    ys = [np.empty(shape, np.float32) for shape in ((2, 3), (4, 3), (2, 6), (2, 3))]
    tensors = [abi.make_tensor(a.ctypes.data, (2, 32), a.shape, None) for a in (x, *ys)]
    given, made = (abi.CTensor * 1)(tensors[0]), (abi.CTensor * 4)(*tensors[1:])
    assert module._api.call(module._handle, given, 1, made, 4, None, None) == 0
    results.append(ys[0])

for run in (lambda: results.append(module(x)[0]), call):
    results = []
    threads = [threading.Thread(target=lambda: [run() for _ in range(20)]) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert [r.tolist() for r in results] == [total] * 80

# sizes that need more of the comm's memory, and less again
for rows in (2, 40000, 60000, 20, 200000):
    found = module(np.full((rows, 3), 1 + comm.rank, np.float32))[0]
    assert found.shape == (rows, 3) and set(found.ravel()) == {4 + comm.rank}

timed = load(sys.argv[1], timed=True, comm=comm)
timed(x)
steps = timed.manifest["variants"][0]["steps"]
assert len(steps) == len(timed.times()) and steps.count("all_gather") == 2, steps
assert all(time.count == 1 and time.seconds > 0 for time in timed.times())

def refused(x):
    try:
        module(x)
    except tcc.UserError as error:
        return str(error)

print(refused(np.zeros((2 + 2 * comm.rank, 3), np.float32)))
comm.close()
assert "there is no comm" in refused(x)
print("ok")
"""


def test_the_comm_that_a_process_shares(comm_library: Path, kinds: Path) -> None:
    """The shared comm is found, serves one run at a time, and reports ranks whose operations
    differ."""
    for text in run_ranks(2, SHARED, comm_library, kinds):
        assert text.endswith("ok\n")
        for said in (
            "all_reduce of 6 f32 by sum",
            "all_reduce of 12 f32 by sum",
            "rank 0",
            "rank 1",
        ):
            assert said in text


class _Call(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("kind", ctypes.c_int),
        ("reduction", ctypes.c_int),
        ("dtype", ctypes.c_uint32),
        ("root", ctypes.c_int32),
        ("count", ctypes.c_int64),
    )


OUT_OF_MEMORY, UNSUPPORTED = 2, 3  # as in tcc.h
_SIZE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_START = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Call), ctypes.c_void_p, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
)  # fmt: skip
_SCRATCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
)
_ABORT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)


class _Table(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("rank", _SIZE),
        ("size", _SIZE),
        ("issue", ctypes.c_void_p),
        ("abort", _ABORT),
        ("last_error", ctypes.c_void_p),
        ("start", _START),
        ("wait", _WAIT),
        ("scratch", _SCRATCH),
        ("subgroup", ctypes.c_void_p),
    )


class Watching:
    """A comm of one rank, whose operations finish when they are waited for.

    It calls `watch` with the kind of each operation that starts, and with 0 at each wait. It has
    `room` bytes of symmetric memory; if `room` is 0, it reports that it has none.
    """

    def __init__(self, watch: Callable[[int], None], room: int) -> None:
        self.tickets: dict[int, tuple[int, int, int]] = {}
        self.aborted: list[str] = []
        self.ends: set[int] = set()  # addresses of sent and received data
        self.memory = np.empty(room, np.uint8)

        def scratch(_: int, size: int, memory: Any) -> int:
            if not room:
                return UNSUPPORTED
            assert size <= room
            memory[0] = self.memory.ctypes.data
            return 0

        def abort(_: int, reason: bytes) -> int:
            self.aborted.append(reason.decode())
            return 0

        def start(_: int, call: Any, send: int, receive: int, ticket: Any) -> int:
            ticket[0] = len(self.tickets) + 1
            self.tickets[ticket[0]] = send, receive, 4 * call[0].count
            self.ends |= {send, receive}
            watch(call[0].kind)
            return 0

        def wait(_: int, ticket: int) -> int:
            watch(0)
            send, receive, size = self.tickets.pop(ticket)
            ctypes.memmove(receive, send, size)
            return 0

        self._table = _Table(
            ctypes.sizeof(_Table), 1, _SIZE(lambda _: 0), _SIZE(lambda _: 1), None, _ABORT(abort),
            None, _START(start), _WAIT(wait), _SCRATCH(scratch),
        )  # fmt: skip
        self._comm = ctypes.pointer(self._table)
        self.handle = ctypes.addressof(self._comm)


@pytest.mark.parametrize("room", [64 * 64 * 4, 0])
def test_kernels_run_while_a_collective_is_under_way(room: int, tmp_path: Path) -> None:
    """A kernel that needs no sum has written its result when the sum is waited for; operands of the
    sum lie in symmetric memory if there is any."""
    shape = [64, 64]
    nodes = [
        node("Relu", ["x"], ["r"]),
        microsoft("AllReduce", ["r"], ["sum"]),
        node("Softmax", ["z"], ["beside"]),
        node("Neg", ["sum"], ["y"]),
    ]
    model = model_of(
        "apart",
        nodes,
        [value("x", FLOAT, shape), value("z", FLOAT, shape)],
        [value("y", FLOAT, shape), value("beside", FLOAT, shape)],
    )
    y, other = (np.full(shape, np.nan, np.float32) for _ in range(2))
    events = []
    # a Comm of the library would not record the calls
    comm: Any = Watching(lambda kind: events.append((kind, not np.isnan(other).any())), room)
    module = tcc.load(compiled(tmp_path, "apart", model), threads=1, comm=comm)
    x, z = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    tensors = [abi.make_tensor(a.ctypes.data, (2, 32), a.shape, None) for a in (x, z, y, other)]
    inputs, outputs = (abi.CTensor * 2)(*tensors[:2]), (abi.CTensor * 2)(*tensors[2:])
    with module._instance() as instance:
        assert module._api.run(instance, inputs, 2, outputs, 2, None, None) == 0
    assert events == [(1, False), (0, True)]
    np.testing.assert_array_equal(y, -np.maximum(x, 0))
    assert not comm.tickets
    assert (comm.ends == {comm.memory.ctypes.data}) == bool(room)


@pytest.mark.parametrize("room", [1 << 16, 0])
def test_operands_of_sums_count_towards_the_limit_of_the_instance(
    room: int, tmp_path: Path
) -> None:
    """Operands of sums count once towards the limit of the instance, in any kind of memory and for
    all runs."""
    nodes = [node("Relu", ["x"], ["r"]), microsoft("AllReduce", ["r"], ["s"])]
    ports = [value(name, FLOAT, [4000]) for name in "xy"]
    model = model_of("counted", [*nodes, node("Neg", ["s"], ["y"])], ports[:1], ports[1:])
    comm: Any = Watching(lambda kind: None, room)
    module = tcc.load(compiled(tmp_path, "counted", model), threads=1, comm=comm)
    x, y = np.ones((2, 4000), np.float32)
    inputs, outputs = (abi.make_tensor(a.ctypes.data, (2, 32), a.shape, None) for a in (x, y))

    def memory() -> abi.CMemory:
        usage = abi.CMemory(ctypes.sizeof(abi.CMemory))
        assert module._api.memory(instance, ctypes.byref(usage)) == 0
        assert usage.used == usage.arena + usage.scratch + usage.state + usage.symmetric
        return usage

    with module._instance() as instance:
        before = memory()
        assert before.symmetric == 0
        for limit, status in ((before.used + 15_999, OUT_OF_MEMORY), (before.used + 16_000, 0)):
            assert module._api.instance_set_memory_limit(instance, limit) == 0
            for _ in range(2):
                assert module._api.run(instance, inputs, 1, outputs, 1, None, None) == status
            assert memory().symmetric == (0 if status else 16_000)
    assert module.statistics().arena_bytes == memory().arena + 16_000
    assert len(comm.aborted) == 2
    assert "allows it" in comm.aborted[0]
    old = abi.CMemory(abi.CMemory.symmetric.offset, symmetric=7)  # of an older caller
    assert module._api.memory(instance, ctypes.byref(old)) == 0
    assert (old.used, old.symmetric) == (memory().used, 7)


# ---- refused models ------------------------------------------------------------------------------


def test_conditions_that_may_differ_are_refused(tmp_path: Path) -> None:
    model = controlled()
    del model.graph.node[0]  # now every rank has its own count
    model.graph.node[0].input[0] = model.graph.node[3].input[0] = "count"
    with pytest.raises(tcc.UserError, match="ranks may issue different collectives") as caught:
        compiled(tmp_path, "refused", model)
    assert "may differ between ranks" in caught.value.why


@pytest.mark.parametrize(
    "wrong",
    [
        microsoft("AllReduce", ["x", "x"], ["y"]),
        microsoft("AllReduce", ["x"], ["y"], group_type=1),
        microsoft("AllGather", ["x"], ["y"], group_size=2, ranks=[0, 1]),
        microsoft("AllToAll", ["x"], ["y"], group_size=2, axis=0),
    ],
    ids=lambda node: node.op_type,
)
def test_groups_that_onnx_runtime_does_not_have_are_refused(wrong: Any) -> None:
    model = model_of("wrong", [wrong], [value("x", FLOAT, [4, 3])], [value("y", FLOAT, None)])
    with pytest.raises(tcc.UserError, match="are not supported") as caught:
        load_model(model)
    assert wrong.op_type in caught.value.where


def test_c_source_has_no_collectives(tmp_path: Path) -> None:
    options = read_options({"target": "c", "inputs": {"x": [4, 3]}})
    with pytest.raises(tcc.UserError, match="the model has collectives, which") as caught:
        compile_model(every_kind(), options, tmp_path / "refused")
    assert "all_reduce at" in caught.value.why
    assert "--target cpu" in caught.value.hint
