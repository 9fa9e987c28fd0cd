"""What a backend is to the driver: code generation, images and lines of the manifest.

    graph --lower--> Lowered --fitted--> Lowered --generate--> Generated --write--> a file

What passes may see of it is the planner, a `tcc.schedule.backend.KernelModel`.
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
from tcc.passes.derive.derive import Derivations
from tcc.passes.manager import Pass
from tcc.passes.program.lowered import Lowered
from tcc.passes.tile.plan import KernelPlanner
from tcc.target import Target


class Backend(Protocol):
    """Lowers and generates one model for `target`: one variant of an artifact.

    `kinds` are the kinds of target that it is for, and `suffix` is that of the file it writes.  One
    that is no library `needs` what runs it, in words.
    `asked` are the passes over graphs that it needs, and `derivations` what other algorithms for
    sums of products are priced by (None: they stay the model's).  Methods that are not abstract
    have a plain answer.
    """

    kinds: ClassVar[tuple[str, ...]]
    suffix: ClassVar[str] = ".so"
    needs: ClassVar[str] = ""
    target: Target
    options: Options
    planner: KernelPlanner
    asked: tuple[Pass, ...] = ()
    derivations: Derivations | None = None

    @property
    def priced(self) -> int:
        """How many schedules' prices were compared."""
        return self.planner.priced

    @classmethod
    def refused(cls, options: Options) -> Mapping[str, str]:
        """Why options mean nothing here, by flag: an error where all targets of a compile refuse
        the same."""
        return {}

    @classmethod
    def check_tools(cls, triple: str) -> None:
        """Raises ToolError where a program is missing that a file for `triple` takes."""
        find_toolchain(triple)

    @classmethod
    def tools(cls, options: Options) -> AbstractContextManager[Any]:
        """What the variants of one artifact share, such as processes; open while they are made."""
        return nullcontext()

    @classmethod
    @abstractmethod
    def variants(
        cls, target: Target, options: Options, constants: int, tools: Any
    ) -> tuple[Self, ...]:
        """What makes each variant of `target`, for a model with so many bytes of `constants`;
        `tools` are as of the method, or None.

        Raises UserError for options that do not fit the target."""

    def check(self, graph: Graph) -> None:
        """Raises UserError, with names, for what a graph has that cannot run here."""
        return None

    @abstractmethod
    def lower(self, graph: Graph, trace: Trace) -> Lowered:
        """The program and its kernels."""

    def begin(self, lowered: Lowered, names: Sequence[str]) -> None:
        """Starts work that `fitted` and `generate` will ask for, while the caller does others."""
        return None

    def fitted(self, lowered: Lowered, names: Sequence[str], trace: Trace) -> Lowered:
        """`lowered` with other schedules for kernels that turn out not to fit the machine."""
        return lowered

    @abstractmethod
    def generate(self, lowered: Lowered, names: Sequence[str]) -> Generated:
        """The kernels as code under `names`, and what the manifest says of them."""

    def joined(self, other: Backend) -> Self | None:
        """One backend for the targets of both, whose programs came out equal; None where each needs
        a variant of its own."""
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
        errors are as of `link_artifact`."""
        return link_artifact(variants, manifest, name, output, triple=triple)
