"""Runtimes to compare with, each in a process of its own (`worker.py` states the protocol)."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tcc.errors import ToolError, UserError, check_written
from tcc.frozen import frozen
from tcc.ir.op import Array, NamedArrays
from tcc.runtime.worker import read_arrays, write_arrays
from tcc.runtime.worker_process import JsonWorker, WorkerError
from tcc.temporary import temporary_folder

# Seconds to wait for one answer of a worker: loading and compiling a model, a batch of runs.
CAP = 300.0
SEED = 0  # the seed of the random numbers that an artifact draws

# Variables that keep a peer from reporting to its vendor.
_QUIET = MappingProxyType(
    {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
)
_OPENVINO_CONSENT = Path("intel") / "openvino_telemetry"


@frozen
class PeerKind:
    """A kind of peer: a runtime with its settings.

    `title` is its name for people.  `package` must be importable, and `install` is the name that
    pip installs; both are "" for tcc.  `module` is the worker: the name of a module or the path of
    a script.  The worker gets `arguments`.  It reads .pt2 archives if
    `reads_archives`, else ONNX files.
    """

    title: str
    module: str
    package: str = ""
    install: str = ""
    arguments: tuple[str, ...] = ()
    reads_archives: bool = False


_ORT = ("tcc.cli.peers.ort", "onnxruntime", "onnxruntime")
_OPENVINO = ("tcc.cli.peers.openvino", "openvino", "openvino")
_IREE = "iree-base-compiler iree-base-runtime"

PEERS: Mapping[str, PeerKind] = MappingProxyType(
    {
        "tcc": PeerKind("tcc", "tcc.cli.peers.tcc"),
        "ort": PeerKind("ONNX Runtime", *_ORT),
        "ort-plain": PeerKind("ONNX Runtime, unoptimised", *_ORT, ("unoptimised",)),
        "openvino": PeerKind("OpenVINO, f32", *_OPENVINO, ("f32",)),
        "openvino-bf16": PeerKind("OpenVINO, bf16", *_OPENVINO, ("bf16",)),
        "tvm": PeerKind("TVM, untuned", "tcc.cli.peers.tvm", "tvm", "apache-tvm"),
        "iree": PeerKind("IREE", "tcc.cli.peers.iree", "iree.compiler", _IREE),
        "inductor": PeerKind(
            "torch.compile", "tcc.cli.peers.inductor", "torch", "torch", reads_archives=True
        ),
    }
)


def check_installed(row: PeerKind) -> None:
    """Raises ToolError where the peer is not installed."""
    # find_spec imports the parent package and fails without it, so the parent is looked up first.
    parents = [row.package.rpartition(".")[0], row.package]
    if not all(find_spec(name) for name in parents if name):
        raise ToolError(f"{row.title} is not installed", hint=f"pip install {row.install}")


def peer_names(text: str) -> list[str]:
    """Returns the names in a text like "ort,tvm".

    Raises UserError for a name that `PEERS` lacks, and ToolError for a peer that is not installed.
    """
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            hint = f"there are: {', '.join(PEERS)}"
            raise UserError(f"unknown peer {name!r}", where="--peers", hint=hint)
        check_installed(PEERS[name])
    return names


def check_format(row: PeerKind, model: Path) -> None:
    """Raises ToolError where the peer does not read files of the model's kind."""
    if row.reads_archives != (model.suffix == ".pt2"):
        format_name = ".pt2 archives" if row.reads_archives else "ONNX files"
        raise ToolError(
            f"{row.title} reads {format_name} alone", where=model, hint="give MODEL in that format"
        )


class Peer(AbstractContextManager["Peer"]):
    """A running worker; use it in a `with`.

    `row` describes a peer that `PEERS` lacks.  `cap` bounds the seconds of each answer.  Raises
    UserError where the worker could not write a file, and ToolError where the peer is not
    installed, where the worker fails (with the end of its log), or where an answer takes longer
    than `cap`.
    """

    def __init__(
        self,
        kind: str,
        model: Path,
        inputs: NamedArrays,
        threads: int,
        *,
        row: PeerKind | None = None,
        cap: float = CAP,
    ) -> None:
        self.kind = kind
        self._row = row or PEERS[kind]
        self._cap, self._model = cap, model
        check_installed(self._row)
        self._ending = ExitStack()
        folder = self._folder = self._ending.enter_context(temporary_folder("tcc-peer-"))
        self._feed = folder / "inputs.npz"
        write_arrays(self._feed, inputs)
        arguments = [str(model), str(self._feed), str(threads), *self._row.arguments]
        environment = _environment(folder, threads)
        self._process = JsonWorker(self._row.module, arguments, folder / "log", environment)
        try:
            with self._errors():
                self._process.answer(cap)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker and removes its files."""
        self._process.close()
        self._ending.close()

    def seconds(self, count: int) -> list[float]:
        """Returns the wall seconds of each of `count` runs."""
        return [float(value) for value in self.ask(f"time {count}")["seconds"]]

    def give(self, inputs: NamedArrays) -> None:
        """Replaces the inputs of the model."""
        write_arrays(self._feed, inputs)
        self.ask("again")

    def outputs(self) -> dict[str, Array]:
        """Runs the model once and returns its outputs by name."""
        path = self._folder / "outputs.npz"
        self.ask(f"outputs {path}")
        return read_arrays(path)

    def ask(self, line: str) -> dict[str, Any]:
        """Returns the worker's answer to a line; raises ToolError as the class says."""
        with self._errors():
            return self._process.ask(line, self._cap)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns WorkerError into ToolError."""
        try:
            yield
        except WorkerError as error:
            title = self._row.title
            if error.late:
                raise ToolError(f"{title} took more than {self._cap:g} seconds") from error
            check_written(title, error.why)
            hint = f"see whether {title} alone runs the model on these inputs"
            raise ToolError(
                f"{title} failed", where=self._model, why=error.why, hint=hint
            ) from error


def _environment(folder: Path, threads: int) -> dict[str, str]:
    """Returns the environment variables of a worker that differ from those of this process.

    The worker draws the same random numbers as the references of `tcc verify`.  OpenVINO reads from
    a file in the home folder whether it may report to its vendor, so the worker gets a home folder
    whose file says no.
    """
    consent = folder / _OPENVINO_CONSENT
    consent.parent.mkdir()
    consent.write_text("0")
    return {
        **_QUIET,
        "HOME": str(folder),
        "TCC_SEED": str(SEED),
        "OMP_NUM_THREADS": str(threads),
    }
