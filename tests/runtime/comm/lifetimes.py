"""Every public method of the runtime's objects, in every order of close, collect and use.

    python lifetimes.py FOLDER [--every N] [--seed S]

Each order runs in a new process, forked from this one, on a comm of one rank.  The program prints
the number of orders, and a line for each order that ended by a signal or raised an error that the
runtime does not define.  FOLDER holds summed.so, a model with collectives in memory that ranks
share, and plain.so.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import faulthandler
import gc
import os
import pickle
import random
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from tcc.runtime import Module, abi, load
from tcc.runtime import comm as comms
from tcc.runtime.planner import Life, Planner

SECONDS = 60  # seconds of one order
Things = dict[str, Any]
Use = Callable[[Any], object]

X = np.arange(8, dtype=np.float32)
LARGE = np.ones(1 << 15, np.float32)  # so large that results come from the pool


class Instance:
    """An instance of the C interface, which holds the only reference to its comm."""

    def __init__(self, module: Module, comm: comms.Comm) -> None:
        self.module, self.comm = module, weakref.ref(comm)
        self.handle = ctypes.c_void_p()
        create = module._api.instance_create_on
        assert not create(module._handle, 0, comm.handle, ctypes.byref(self.handle))

    def run(self, within: Callable[[], object] = int) -> None:
        """Runs the instance; `within` is called when the run has its memory, before any kernel."""
        y = np.empty_like(LARGE)

        def allocate(_context: Any, _index: int, _wanted: Any, out_data: Any) -> int:
            within()
            out_data[0] = y.ctypes.data
            return 0

        x = abi.make_tensor(LARGE.ctypes.data, abi.DTYPE_CODES["f32"], LARGE.shape, None)
        allocator = abi.Allocator(None, abi.ALLOCATE(allocate))
        api = self.module._api
        if api.run(self.handle, x, 1, None, 0, ctypes.byref(allocator), None):
            raise RuntimeError(api.last_error().decode())
        assert (y == LARGE).all()

    def run_and_close(self) -> None:
        comm = self.comm()
        self.run(comm.close if comm else int)

    def __del__(self) -> None:
        self.module._api.instance_destroy(self.handle)


# The uses of each object, by its class and the name of the method or property.
USES: dict[str, dict[str, Use]] = {
    "comm": {
        "__enter__": lambda comm: comm.__enter__(),
        "__exit__": lambda comm: comm.__exit__(None, None, None),
        "abort": lambda comm: comm.abort("enough"),
        "all_gather": lambda comm: comm.all_gather(X),
        "all_reduce": lambda comm: comm.all_reduce(X),
        "all_to_all": lambda comm: comm.all_to_all(X[None]),
        "backend": lambda comm: comm.backend,
        "barrier": lambda comm: comm.barrier(),
        "broadcast": lambda comm: comm.broadcast(X),
        "close": lambda comm: comm.close(),
        "failed": lambda comm: comm.failed(),
        "handle": lambda comm: comm.handle.value,
        "local_rank": lambda comm: comm.local_rank,
        "local_size": lambda comm: comm.local_size,
        "raise_error": lambda comm: comm.raise_error(),
        "rank": lambda comm: comm.rank,
        "receive": lambda comm: comm.receive(np.empty(8), 0),
        "reduce_scatter": lambda comm: comm.reduce_scatter(X[None]),
        "scratch": lambda comm: comm.scratch(100).fill(1),
        "send": lambda comm: comm.send(X, 0),
        "share": lambda comm: comm.share(),
        "shrink": lambda comm: comm.shrink([]).all_reduce(X),
        "size": lambda comm: comm.size,
        "split": lambda comm: comm.split(0).all_reduce(X),
        "start": lambda comm: comm.start("all_reduce", X).wait(),
        "symmetric": lambda comm: comm.symmetric(100).fill(1),
    },
    "started": {"wait": lambda started: started.wait().sum()},
    "summed": {
        "__call__": lambda module: module(X),
        "__copy__": lambda module: copy.copy(module)(X),
        "__deepcopy__": lambda module: copy.deepcopy(module)(X),
        "__reduce__": lambda module: pickle.loads(pickle.dumps(module))(X),
        "run": lambda module: module.run({"x": X}),
        "save": lambda module: module.save(Path("/dev/null/none")),
        "statistics": lambda module: module.statistics(),
        "times": lambda module: module.times(),
        "ffi": lambda module: module.ffi,
        "attributes": lambda module: (repr(module), module.manifest, module.inputs, module.outputs),
    },
    "finder": {"__call__": lambda module: module(X)},  # on the comm of the process
    "instance": {
        "run": lambda instance: instance.run(),
        "run_and_close": lambda instance: instance.run_and_close(),
    },
    "plain": {
        "__call__": lambda module: module(LARGE),
        "__copy__": lambda module: copy.copy(module)(LARGE),
        "run": lambda module: module.run({"x": LARGE}),
        "statistics": lambda module: module.statistics(),
    },
    "planner": {
        "plan": lambda planner: planner.plan([Life(0, 1, 8)], go_on=lambda *_: True),
        "check": lambda planner: planner.check([Life(0, 1, 8)], planner.plan([Life(0, 1, 8)])),
    },
}
for _name in ("arena", "scratch", "result", "pooled", "value"):
    USES[_name] = {
        "write": lambda array: array.fill(7),
        "read": lambda array: (array + array, array.sum(), bytes(array)),
        "view": lambda array: memoryview(array[: len(array) // 2].view(np.uint8)).tobytes(),
        "in place": lambda array: np.maximum(array, array, out=array),
    }
PUBLIC = {"comm": comms.Comm, "started": comms.Started, "summed": Module, "planner": Planner}
OF_EACH = ("__enter__", "__exit__", "__call__", "__copy__", "__deepcopy__")


def public_names(kind: type) -> set[str]:
    """Returns the public methods and properties of a class, including Python's protocol methods."""
    names = {name for name in dir(kind) if not name.startswith("_")}
    return names | {name for name in OF_EACH if name in vars(kind)}


# ---- orders --------------------------------------------------------------------------------------

EVENTS = ("close", "collect", "grow", "beside")
Order = tuple[str, str, tuple[str, ...]]
# Each of these orders once ended in a signal.
KNOWN: tuple[Order, ...] = (
    ("arena", "read", ("close",)),
    ("comm", "all_reduce", ("beside",)),
    ("instance", "run", ("collect",)),
    ("instance", "run_and_close", ("collect",)),
    ("instance", "run_and_close", ("grow",)),
    ("scratch", "write", ("grow",)),
    ("summed", "__call__", ("close",)),
)


def orders(every: int, draws: random.Random) -> list[Order]:
    """Returns orders: an object, its use, and events; the use comes before, between and after the
    events.

    For each use, one order in `every` is taken, and the orders of KNOWN.
    """
    rows = [row for n in (1, 2, 3) for row in permutations(EVENTS, n)]
    uses = [(name, use) for name, uses in USES.items() for use in uses]
    sampled = [(*use, row) for use in uses for row in draws.sample(rows, len(rows))[::every]]
    sampled += [order for order in KNOWN if order not in sampled]
    draws.shuffle(sampled)
    return sampled


def make(folder: Path) -> Things:
    comm = comms.open(0, 1, rendezvous=f"lifetimes-{os.getpid()}", operation_seconds=20)
    comm.share()
    things: Things = {
        "comm": comm,
        "arena": comm.symmetric(100),
        "scratch": comm.scratch(100),
        "started": comm.start("all_reduce", LARGE),
        "summed": load(folder / "summed.so", threads=1, comm=comm),
        "finder": load(folder / "summed.so", threads=1),
        "plain": load(folder / "plain.so", threads=1),
        "planner": Planner(),
    }
    things["half"] = comm.split(0)  # it is not shared, so its memory is freed
    things["instance"] = Instance(things["finder"], things["half"])
    things["result"] = things["summed"](X)
    things["pooled"] = things["plain"](LARGE)
    things["value"] = comm.start("broadcast", X)._result
    return things


# Errors that may end a use, besides its result.
ERRORS = (comms.CommError, RuntimeError, OSError, TypeError)


def attempt(use: Use, thing: Any) -> bool:
    try:
        use(thing)
    except ERRORS:
        return False
    return True


def happen(event: str, things: Things, name: str, use: Use) -> None:
    comms_to_close = [things[comm] for comm in ("comm", "half") if comm in things]
    match event:
        case "close":
            close(comms_to_close)
        case "grow":
            for comm in comms_to_close:
                attempt(lambda one: one.scratch(1 << 20), comm)
        case "collect":
            comms_to_close.clear()
            comm = None
            for other in [*things]:
                if other != name:
                    del things[other]
            gc.collect()
        case "beside" if comms_to_close:
            close_beside(comms_to_close, things[name], use)


def close(own: Sequence[comms.Comm]) -> None:
    for comm in own:
        comm.close()


def close_beside(own: Sequence[comms.Comm], thing: Any, use: Use) -> None:
    """Closes the comms while another thread uses the object."""
    begun, enough = threading.Event(), threading.Event()

    def go_on() -> None:
        while attempt(use, thing) and not enough.is_set():
            begun.set()
        begun.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    begun.wait()
    close(own)
    enough.set()
    thread.join()


def run(order: Order, folder: Path) -> None:
    name, use_number, events = order
    use, things = USES[name][use_number], make(folder)
    for event in events:
        attempt(use, things[name])
        happen(event, things, name, use)
    attempt(use, things[name])
    del use
    things.clear()
    gc.collect()


# ---- processes -----------------------------------------------------------------------------------


def child(order: Order, folder: Path) -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    failures: list[BaseException | None] = []
    threading.excepthook = lambda about: failures.append(about.exc_value)
    try:
        run(order, folder)
    except BaseException as failure:
        failures.append(failure)
    for failure in failures:
        traceback.print_exception(failure)
    return len(failures)


def outcomes(chosen: Sequence[Order], folder: Path) -> Iterator[str]:
    """Yields a line for each order that ended in another way than it should."""
    running: dict[int, Order] = {}
    for order in [*chosen, None]:
        while running and (order is None or len(running) > 1):
            pid, status = os.wait()
            ended = running.pop(pid)
            if status:
                code = os.waitstatus_to_exitcode(status)
                yield f"{ended}: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        if order is not None:
            pid = os.fork()
            if not pid:
                os._exit(child(order, folder))
            running[pid] = order


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of each use one order of so many")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore", ResourceWarning)
    orders_drawn = orders(arguments.every, random.Random(arguments.seed))
    first = make(arguments.folder)  # loads all libraries
    close((first["comm"], first["half"]))
    first.clear()
    gc.collect()
    bad = 0
    for line in outcomes(orders_drawn, arguments.folder):
        bad += 1
        print(line, flush=True)
    print(f"{len(orders_drawn)} orders, {bad} of them bad")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
