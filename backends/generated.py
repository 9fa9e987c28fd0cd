"""The output of code generation for any target, which is the input of the linker."""

from typing import Any

from tcc.backends.artifact.gpu_binaries import GpuImages
from tcc.frozen import frozen


@frozen
class Generated:
    """The code of a program's kernels.

    `objects` are ELF files for the host's processor and `scratch` the bytes that a thread needs for
    them; `gpu` has the kernels instead if they run on GPUs.  `listings` has a text for people for
    each kernel.  `facts` are the manifest's entries about the machine and the kernels.
    """

    objects: tuple[bytes, ...]
    scratch: int
    listings: tuple[str, ...]
    facts: dict[str, Any]
    gpu: GpuImages | None = None
