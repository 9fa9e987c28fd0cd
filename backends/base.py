"""The driver's interface to a backend: code generation, images and parts of the manifest.

    graph --lower--> Lowered --fitted--> Lowered --generate--> Generated --write--> a file

Passes see only the backend's planner, a `tcc.schedule.backend.KernelModel`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from tcc.backends.artifact.link import link_artifact
from tcc.backends.artifact.toolchain import find_toolchain
from tcc.backends.artifact.variant import Variant
from tcc.backends.generated import Generated
from tcc.debug import Trace
from tcc.ir.graph import Graph
from tcc.options import Options
from tcc.passes.pipeline import GraphSettings
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.plan import KernelPlanner
from tcc.schedule.alternatives import SILENT, Ledger
from tcc.target import Target


class Backend(Protocol):
    """Lowers and generates one model for `target`: one variant of an artifact.

    `kinds` are the kinds of its targets, and `suffix` is that of the file it writes.  If the file
    is no library, `needs` says in words what runs it.  `settings` say which steps on graphs
    it needs, and how.  Methods that are not abstract have a default.
    """

    kinds: ClassVar[tuple[str, ...]]
    suffix: ClassVar[str] = ".so"
    needs: ClassVar[str] = ""
    target: Target
    options: Options
    planner: KernelPlanner
    settings: GraphSettings

    @property
    def priced(self) -> int:
        """The number of schedules whose prices were compared."""
        return self.planner.priced

    @classmethod
    def refused(cls, options: Options) -> Mapping[str, str]:
        """Returns by flag why an option has no effect here; it is an error if all targets of a
        compile refuse it."""
        return {}

    @classmethod
    def check_tools(cls, triple: str) -> None:
        """Raises ToolError where a program is missing that makes the file for `triple`."""
        find_toolchain(triple)

    @classmethod
    def tools(cls, options: Options) -> AbstractContextManager[Any]:
        """Returns the context that an artifact's variants share, such as processes; it is open
        while they are compiled."""
        return nullcontext()

    @classmethod
    @abstractmethod
    def variants(
        cls,
        target: Target,
        options: Options,
        constants: int,
        tools: Any,
        ledger: Ledger = SILENT,
    ) -> tuple[Self, ...]:
        """Returns a backend for each variant of `target`, whose decisions `ledger` sees.

        `constants` is the size of the model's constants in bytes; `tools` is the value of the
        context `tools`, or None.  Raises UserError for options that do not fit the target.
        """

    def check(self, graph: Graph) -> None:
        """Raises UserError, with names, for parts of a graph that cannot run here."""
        return None

    @abstractmethod
    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        """Returns the program and its kernels."""

    def begin(self, lowered: Lowered, names: Sequence[str]) -> None:
        """Starts work in the background whose results `fitted` and `generate` will need."""
        return None

    def fitted(self, lowered: Lowered, names: Sequence[str], trace: Trace) -> Lowered:
        """Returns `lowered` with other schedules for kernels that turn out not to fit the
        machine."""
        return lowered

    @abstractmethod
    def generate(self, lowered: Lowered, names: Sequence[str]) -> Generated:
        """Returns the code of the kernels under `names`, and their entries in the manifest."""

    def joined(self, other: Backend) -> Self | None:
        """Returns one backend for the targets of both, whose programs are equal; None where each
        target needs its own variant."""
        return None

    @classmethod
    def write(
        cls,
        variants: Sequence[Variant],
        manifest: dict[str, Any],
        name: str,
        output: Path,
        triple: str,
    ) -> dict[str, Any]:
        """Writes the file `output` and its header, and returns the whole manifest; arguments and
        errors are as in `link_artifact`."""
        return link_artifact(variants, manifest, name, output, triple=triple)
