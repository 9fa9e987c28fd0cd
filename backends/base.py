"""The driver's interface to a backend: code generation, images and parts of the manifest.

    graph --lower--> Lowered --fitted--> Lowered --generate--> Generated --write--> a file

Passes get only the backend's planner, a `tcc.schedule.backend.KernelModel`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self

from tcc.backends.artifact.assets import NO_ASSETS
from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.toolchain import find_toolchain
from tcc.backends.artifact.variant import Variant
from tcc.backends.generated import Generated
from tcc.debug import Trace
from tcc.errors import InternalError
from tcc.ir.graph import Graph
from tcc.options import FLAGS, Options
from tcc.passes.pipeline import GraphSettings
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.plan import KernelChooser
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.target import Target

_DEFAULTS = Options()


class Backend(Protocol):
    """Lowers a model and generates its code for `target`: one variant of an artifact.

    `kinds` are the kinds of targets that it compiles for. `suffix` is the suffix of the file that
    it writes. If the file is no library, `needs` says in words what runs it; else it is "".
    `refusals` has the fields of `Options` that have no effect here, each with the reason.
    `settings` select and configure the passes on graphs. Methods that are not abstract have a
    default.
    """

    kinds: ClassVar[tuple[str, ...]]
    suffix: ClassVar[str] = ".so"
    needs: ClassVar[str] = ""
    refusals: ClassVar[Mapping[str, str]] = MappingProxyType({})
    target: Target
    options: Options
    planner: KernelChooser
    settings: GraphSettings

    @property
    def priced(self) -> int:
        """The number of schedules whose prices were compared."""
        return self.planner.priced

    @classmethod
    def refused(cls, options: Options) -> Mapping[str, str]:
        """Maps the flags of options that have no effect here to the reason.

        Options with their default value are left out. It is an error if all targets of a compile
        refuse an option.
        """
        changed = (f for f in FLAGS if getattr(options, f.name) != getattr(_DEFAULTS, f.name))
        return {f.spelling: cls.refusals[f.name] for f in changed if f.name in cls.refusals}

    @classmethod
    def check_tools(cls, triple: str) -> None:
        """Raises ToolError if a program is missing that is needed to make a file for `triple`."""
        find_toolchain(triple)

    @classmethod
    def tools(cls, options: Options) -> AbstractContextManager[Any]:
        """Returns a context with resources that all variants share, such as worker processes.

        It is open while the variants are compiled.
        """
        return nullcontext()

    def __init__(
        self, target: Target, options: Options, constants: int, ledger: Ledger = SILENT
    ) -> None:
        """Backends whose variants are made in another way need not have these parameters."""

    @classmethod
    def variants(
        cls,
        target: Target,
        options: Options,
        constants: int,
        tools: Any,
        ledger: Ledger = SILENT,
    ) -> tuple[Self, ...]:
        """Returns a backend for each variant of `target`; each reports its decisions to `ledger`.

        `constants` is the size of the model's constants in bytes. `tools` is the object that the
        context manager `cls.tools` yielded, or None. Raises UserError for options that do not fit
        the target.
        """
        return (cls(target, options, constants, ledger),)

    def check(self, graph: Graph) -> None:
        """Raises UserError for parts of a graph that cannot run on this target, with their
        names."""
        return None

    @abstractmethod
    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        """Returns the model as a host program and its kernels."""

    def begin(self, lowered: Lowered, names: Sequence[str]) -> None:
        """Starts background work whose results `fitted` and `generate` will need."""
        return None

    def fitted(self, lowered: Lowered, names: Sequence[str], trace: Trace) -> Lowered:
        """Returns `lowered` with new schedules for the kernels that do not fit the machine.

        The kernels are compiled first. A kernel does not fit if its code spills registers, for
        example.
        """
        return lowered

    def share_code(self, other: Backend | None = None) -> None:
        """Keeps the code of kernels, so that later models with equal kernels take less time.

        With `other`, a backend for the same target, both keep their code together.
        """
        return None

    def lowered_again(self, lowered: Lowered, trace: Trace) -> Lowered:
        """Returns a model that this backend lowered, with the kernels that the planner chooses now.

        Raises InternalError for a backend whose models are lowered once.
        """
        raise InternalError(f"models for {self.target.text} are lowered once")

    @abstractmethod
    def generate(
        self, lowered: Lowered, names: Sequence[str], trace: Trace | None = None
    ) -> Generated:
        """Returns the code of the kernels, called `names`, and their entries in the manifest.

        `trace` gets the number of finished kernels if their code takes long.
        """

    def merged_with(self, other: Backend) -> Self | None:
        """Returns one backend for the targets of both backends, whose programs are equal.

        Returns None if each target needs a variant of its own.
        """
        return None

    @classmethod
    def write(
        cls,
        variants: Sequence[Variant],
        manifest: dict[str, Any],
        name: str,
        output: Path,
        triple: str,
        emit: str = "shared",
        assets: Mapping[str, bytes] = NO_ASSETS,
    ) -> dict[str, Any]:
        """Writes the file `output` and its header, and returns the complete manifest.

        `name` is a C identifier. `triple` (as in aarch64-linux-gnu) selects the C compiler; ""
        means this machine's architecture. `emit` is a key of `tcc.options.EMITS`. `assets` are
        files for users of the model, by name; the manifest has an entry `assets` with those that
        the file holds. Raises InternalError if the variants do not fit each other, and ToolError if
        the file cannot be compiled or written.
        """
        return link_artifact(
            variants, manifest, name, output, triple=triple, emit=emit, assets=assets
        )
