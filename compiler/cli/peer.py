"""Runtimes to compare with, each in a process of its own.

A worker is started as `python -m tcc.cli.peer_X MODEL INPUTS.npz THREADS`, answers one JSON line
when it is ready, then one JSON line for each line it reads:

    time COUNT      -> {"seconds": [...]}       wall seconds of COUNT runs
    outputs FILE    -> {"outputs": count}       writes the outputs of one run to FILE (npz)

A failure is answered with {"error": text} and ends the worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np
from tcc.errors import ToolError, UserError
from tcc.ir.op import Array


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of peer: `package` must be installed for it; `arguments` go to its worker."""

    title: str
    module: str
    package: str = ""
    arguments: tuple[str, ...] = ()


PEERS: Mapping[str, Row] = MappingProxyType(
    {
        "tcc": Row("tcc", "tcc.cli.peer_tcc"),
        "ort": Row("ONNX Runtime", "tcc.cli.peer_ort", "onnxruntime"),
        "ort-plain": Row(
            "ONNX Runtime, unoptimised", "tcc.cli.peer_ort", "onnxruntime", ("unoptimised",)
        ),
    }
)


class Peer:
    """A running worker; use it in a `with`.

    Raises ToolError, with the worker's last words, when the worker fails.
    """

    def __init__(self, kind: str, model: Path, inputs: Mapping[str, Array], threads: int) -> None:
        row = PEERS[kind]
        if row.package and find_spec(row.package) is None:
            raise UserError(
                f"{row.title} is not installed", hint=f"pip install {row.package}, or tcc[bench]"
            )
        self.kind = kind
        self._folder = TemporaryDirectory(prefix="tcc-peer-")
        feed = Path(self._folder.name) / "inputs.npz"
        write_arrays(feed, inputs)
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "ORT_DISABLE_TELEMETRY": "1",
            # The worker imports from where this process does, installed or not.
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", row.module, str(model), str(feed), str(threads), *row.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker and removes its files."""
        with self._process:
            self._process.kill()
        self._folder.cleanup()

    def seconds(self, count: int) -> list[float]:
        """Wall seconds of `count` runs, one after the other."""
        return [float(value) for value in self._ask(f"time {count}")["seconds"]]

    def outputs(self) -> dict[str, Array]:
        """The outputs by name."""
        path = Path(self._folder.name) / "outputs.npz"
        self._ask(f"outputs {path}")
        return read_arrays(path)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the worker has ended; reading its answer says why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if not line or "error" in answer:
            why = answer.get("error") or f"its process ended with {self._process.wait()}"
            raise ToolError(f"{PEERS[self.kind].title} failed", why=str(why))
        return answer


# ---- the worker's side ------------------------------------------------------------------------


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Names may be any text, so arrays are numbered; array 0 holds the names."""
    np.savez(path, np.array(list(arrays), dtype=np.str_), *arrays.values())


def read_arrays(path: Path) -> dict[str, Array]:
    """The inverse of `write_arrays`."""
    with np.load(path, allow_pickle=False) as held:
        return {str(name): held[f"arr_{index}"] for index, name in enumerate(held["arr_0"], 1)}


def serve(prepare: Callable[[], Callable[[], Mapping[str, Array]]]) -> None:
    """Answers requests on stdin until it ends; `prepare()` gives the function that runs once."""
    try:
        run = prepare()
        run()
        _reply({"ready": True})
        for line in sys.stdin:
            verb, _, rest = line.strip().partition(" ")
            _reply(_timed(run, int(rest)) if verb == "time" else _written(run(), Path(rest)))
    except Exception as error:
        _reply({"error": f"{type(error).__name__}: {error}"})


def _reply(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _timed(run: Callable[[], Mapping[str, Array]], count: int) -> dict[str, Sequence[float]]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


def _written(outputs: Mapping[str, Array], path: Path) -> dict[str, int]:
    write_arrays(path, outputs)
    return {"outputs": len(outputs)}
