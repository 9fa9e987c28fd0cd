"""What code generation hands to the linker, whatever the target."""

from typing import Any

from tcc.backends.artifact.gpu_binaries import GpuImages
from tcc.record import record


@record
class Generated:
    """The kernels of a program as code.

    `objects` are ELF files for the host's processor and `scratch` the bytes that a thread needs for
    them; `gpu` holds kernels for GPUs in their place.  `listings` are texts for people, one a
    kernel; `facts` what the manifest says of machine and kernels.
    """

    objects: tuple[bytes, ...]
    scratch: int
    listings: tuple[str, ...]
    facts: dict[str, Any]
    gpu: GpuImages | None = None
