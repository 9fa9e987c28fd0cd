"""The output of code generation for any target; the linker reads it."""

from typing import Any

from tcc.backends.artifact.gpu_binaries import GpuImages
from tcc.frozen import frozen


@frozen
class Generated:
    """The code of a program's kernels.

    `objects` are ELF files for the CPU, and `scratch` is the number of bytes that a thread needs to
    run them. If the kernels run on GPUs, `gpu` has them instead. `listings` has a text for people
    for each kernel. `facts` are the manifest's entries about the machine and the kernels.
    """

    objects: tuple[bytes, ...]
    scratch: int
    listings: tuple[str, ...]
    facts: dict[str, Any]
    gpu: GpuImages | None = None
