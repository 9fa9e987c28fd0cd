"""tcc.runtime.comm: collectives on NumPy arrays between Python processes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from library import run

from tests.processes import tethered

RANK = """
import sys
import ml_dtypes
import numpy as np
from tcc.runtime import comm as comms

with comms.open() as comm:
    rank, size = comm.rank, comm.size
    assert comm.backend == "shared"
    data = [np.random.default_rng(i).normal(size=(size, 5)).astype("f4") for i in range(size)]
    mine, total = data[rank], sum(data[1:], data[0])
    np.testing.assert_array_equal(comm.all_reduce(mine), total)
    strided = np.asfortranarray(mine)
    np.testing.assert_array_equal(comm.all_reduce(strided, "max"), np.max(data, axis=0))
    np.testing.assert_array_equal(comm.reduce_scatter(mine), total[rank])
    np.testing.assert_array_equal(comm.all_gather(mine), np.stack(data))
    np.testing.assert_array_equal(comm.all_to_all(mine), np.stack([x[rank] for x in data]))
    np.testing.assert_array_equal(comm.broadcast(mine, size - 1), data[-1])
    half = np.full(3, rank, ml_dtypes.bfloat16)
    assert comm.all_reduce(half, "avg").tolist() == [(size - 1) / 2] * 3
    out = mine.copy()
    assert comm.all_reduce(out, out=out) is out
    if rank == 0:
        comm.send(mine, 1)
    if rank == 1:
        np.testing.assert_array_equal(comm.receive(np.empty_like(mine), 0), data[0])
    arena = comm.symmetric(4096)[:80].view("f4")
    arena[:] = rank + 1
    comm.all_reduce(arena, out=arena)
    assert arena.tolist() == [size * (size + 1) / 2] * 20
    memory = comm.scratch(80).view("f4")
    memory[:] = rank + 1
    comm.all_reduce(memory, out=memory)
    assert memory.tolist() == [size * (size + 1) / 2] * 20
    assert comm.scratch(40).ctypes.data == memory.ctypes.data
    wanted = {
        "all_reduce": total, "reduce_scatter": total[rank], "all_gather": np.stack(data),
        "all_to_all": np.stack([x[rank] for x in data]), "broadcast": data[0],
    }
    # operands and results that nobody holds stay until they are waited for, in any order
    assert [*comms.KINDS] == [*wanted]
    started = {kind: comm.start(kind, mine.copy()) for kind in comms.KINDS}
    for kind in reversed(comms.KINDS):
        np.testing.assert_array_equal(started[kind].wait(), wanted[kind])
    assert started["broadcast"].wait() is started["broadcast"].wait()
    comm.start("all_reduce", np.ones(1 << 20, "f4"))
    late = comm.start("all_reduce", mine, "max", out=out)
    np.testing.assert_array_equal(comm.all_reduce(mine), total)
    assert late.wait() is out
    np.testing.assert_array_equal(out, np.max(data, axis=0))
    np.testing.assert_array_equal(comm.start("broadcast", mine, root=1).wait(), data[1])
    assert not comm._flying
    group = comm.split(0 if rank < 2 else -1, key=-rank)
    if group:
        with group:
            assert (group.rank, group.size) == (1 - rank, 2)
            group.barrier()
    for wrong, text in (
        (lambda: comm.all_reduce(np.zeros(3, "c8")), "complex64: expected one of float16"),
        (lambda: comm.all_reduce(mine, "mean"), "'mean': expected one of sum"),
        (lambda: comm.all_reduce(mine, out=np.zeros(3)), "row-major float32 array of shape"),
        (lambda: comm.all_to_all(np.zeros(size + 1)), "expected shape"),
        (lambda: comm.broadcast(mine, size), "broadcast: rank"),
        (lambda: comm.send(mine, rank), "the peer is the calling rank"),
        (lambda: comm.start("send", mine), "'send': expected one of all_reduce"),
        (lambda: comm.start("all_to_all", np.zeros(size + 1)), "expected shape"),
        (lambda: comm.start("all_gather", mine, out=mine), "row-major float32 array of shape"),
        (lambda: comm.scratch(0), "scratch: out_memory is NULL, or there are no bytes"),
    ):
        try:
            wrong()
        except comms.CommError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    forgotten = comm.start("all_reduce", mine)
    comm.barrier()
    if rank == 0:
        comm.abort("no more")
    try:
        while True:
            comm.barrier()
    except comms.CommError as error:
        assert error.status == "cancelled" and "no more" in str(error), error
try:
    forgotten.wait()
except comms.CommError as error:
    assert "the comm is closed" in str(error), error
print("ok")
"""


def start(
    script: str, library: Path, rank: int, size: int, rendezvous: str
) -> subprocess.Popen[str]:
    variables = {
        "TCC_COMM_LIBRARY": str(library), "TCC_RANK": str(rank), "TCC_SIZE": str(size),
        "TCC_RENDEZVOUS": rendezvous,
    }  # fmt: skip
    return subprocess.Popen(
        [*tethered(), sys.executable, "-c", script], env=os.environ | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_arrays(comm_library: Path) -> None:
    ranks = [start(RANK, comm_library, i, 3, f"python-{os.getpid()}") for i in range(3)]
    ended = [process.communicate(timeout=100) for process in ranks]
    assert [out for out, _ in ended] == ["ok\n"] * 3, ended


SURVIVOR = """
import os, signal
import numpy as np
from tcc.runtime import comm as comms

comm = comms.open()
assert comm.failed() == []
comm.barrier()
if comm.rank in (0, 2):
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.barrier()
except comms.CommError as error:
    assert error.status == "peer dead", error
else:
    raise AssertionError("the comm holds")
assert {*comm.failed()} <= {0, 2}
with comm.shrink() as rest:
    assert comm.failed() == [0, 2]
    assert (rest.rank, rest.size, rest.failed()) == ((comm.rank - 1) // 2, 2, [])
    assert rest.all_gather(np.array(comm.rank)).tolist() == [1, 3]
    comm.close()
    try:
        comm.failed()
    except comms.CommError as error:
        assert "the comm is closed" in str(error), error
print("ok")
"""


def test_ranks_that_are_left_go_on(comm_library: Path) -> None:
    ranks = [start(SURVIVOR, comm_library, i, 4, f"survivor-{os.getpid()}") for i in range(4)]
    ended = [process.communicate(timeout=100) for process in ranks]
    assert [out for out, _ in ended] == ["", "ok\n", "", "ok\n"], ended


def test_all_copies_of_the_library_share_one_comm(comm_library: Path, tmp_path: Path) -> None:
    other = shutil.copy(comm_library, tmp_path / "other.so")
    script = f"""
import ctypes, sys
sys.path.insert(0, "")
from tcc.runtime import comm as comms
comm = comms.open(0, 1, rendezvous="shared-{os.getpid()}")
first, second = (ctypes.CDLL(path) for path in ({str(comm_library)!r}, {str(other)!r}))
for library in (first, second):
    library.tcc_comm_shared.restype = ctypes.c_void_p
    library.tcc_comm_share.argtypes = [ctypes.c_void_p]
assert first.tcc_comm_shared() is None and second.tcc_comm_shared() is None
assert second.tcc_comm_share(comm._handle) == 0
assert first.tcc_comm_shared() == second.tcc_comm_shared() == comm._handle.value
again = comms.open(0, 1, rendezvous="again-{os.getpid()}")
assert first.tcc_comm_share(again._handle) == 1
comm.close()
assert first.tcc_comm_shared() is None and second.tcc_comm_shared() is None
again.close()
"""
    run(sys.executable, "-c", script, TCC_COMM_LIBRARY=str(comm_library))


def test_a_missing_library_says_how_it_is_made(tmp_path: Path) -> None:
    script = "from tcc.runtime import comm; comm.open(0, 1, rendezvous='x')"
    with pytest.raises(AssertionError, match=r"comm_library FOLDER and set TCC_COMM_LIBRARY"):
        run(sys.executable, "-c", script, TCC_COMM_LIBRARY=str(tmp_path / "none.so"))


def test_the_library_exports_the_header_alone(comm_library: Path) -> None:
    listed = run("nm", "-D", "--defined-only", str(comm_library)).splitlines()
    names = {line.split()[-1] for line in listed}
    assert names
    assert all(name.startswith("tcc_comm_") for name in names), names
    assert hasattr(ctypes.CDLL(str(comm_library)), "tcc_comm_open")


DROPPED = """
import gc, os, sys, warnings
from pathlib import Path
from tcc.runtime import comm as comms

def held():
    return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())

def drop(count):
    for number in range(count):
        comm = comms.open(0, 1, rendezvous=f"dropped-{os.getpid()}")
        comm.symmetric(100), comm.scratch(100), comm.split(0)
        if number % 2:
            comm.share()
    del comm
    gc.collect()

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    drop(3)  # what the process has for all of them
    before = held()
    drop(200)
    after = held()
    assert after[0] == before[0] and after[1] <= before[1] + 3, (before, after)
    assert len(said) == 2 * 203, len(said)
    assert {(w.category, str(w.message)) for w in said} == {
        (ResourceWarning, "a comm was dropped without close")
    }
late = said[-1].source  # what the warning kept is closed
for use in (lambda: late.rank, late.barrier, late.raise_error, late.share, late.close):
    try:
        use()
    except comms.CommError as error:
        assert "closed" in str(error) or "NULL" in str(error), error
with warnings.catch_warnings():
    warnings.simplefilter("error")
    with comms.open(0, 1, rendezvous="closed"):
        pass
    gc.collect()
"""


def test_comms_that_are_dropped_are_closed(comm_library: Path) -> None:
    run(sys.executable, "-c", DROPPED, TCC_COMM_LIBRARY=str(comm_library))


MEET = """
import copy, os, threading
import numpy as np
from tcc.runtime import comm as comms

rank, x, said = int(os.environ["TCC_RANK"]), np.ones(1000, "f4"), []

def go_on(comm):
    try:
        while True:
            comm.all_reduce(x)
    except comms.CommError as error:
        said.append((error.status, str(error)))

with comms.open(operation_seconds=60) as comm:
    comm.barrier()
    threads = [threading.Thread(target=go_on, args=[comm]) for _ in range(2 - rank)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 2 - rank
    for status, text in said:
        assert status == "invalid argument" and "two threads of rank 0" in text, said
    for copied in (copy.copy, copy.deepcopy):
        try:
            copied(comm)
        except TypeError as error:
            assert "neither copied nor pickled" in str(error)
        else:
            raise AssertionError("two objects have one comm")
print("ok")
"""


def test_two_threads_in_one_comm(comm_library: Path) -> None:
    ranks = [start(MEET, comm_library, i, 2, f"meet-{os.getpid()}") for i in range(2)]
    ended = [process.communicate(timeout=100) for process in ranks]
    assert [out for out, _ in ended] == ["ok\n"] * 2, ended


SWAPPED = """
import numpy as np
from tcc.runtime import comm as comms

with comms.open(0, 1, rendezvous="swapped") as comm:
    try:
        comm.all_reduce(np.ones(3, ">f4"))
    except comms.CommError as error:
        assert "element type >f4" in str(error), error
    else:
        raise AssertionError("bytes were summed in the wrong order")
"""


def test_elements_in_another_order_of_bytes_are_refused(comm_library: Path) -> None:
    run(sys.executable, "-c", SWAPPED, TCC_COMM_LIBRARY=str(comm_library))
