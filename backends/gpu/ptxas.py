"""Assembles PTX with NVIDIA's assembler, which comes with Triton, so that old drivers load it too.

Triton bundles two assemblers, from CUDA 12.9 and from CUDA 13. Drivers for CUDA 12 load machine
code from the first but not from the second. Triton itself uses the second from sm_90 on. This
module uses the first.
"""

import re
from types import MappingProxyType

from tcc.backends.gpu.machine_code import ptx_target, run_nvidia
from tcc.errors import ToolError
from tcc.temporary import temporary_folder

# Maps versions of PTX to NVIDIA's driver and the CUDA release with which they came ("Release
# History" of the PTX ISA manual, table 3 of CUDA's release notes). Older drivers lack functions
# that tcc calls.
_DRIVERS = MappingProxyType(
    dict(row.split(" ", 1) for row in (
        "7.4 470 (CUDA 11.4)", "7.5 495 (CUDA 11.5)", "7.6 510 (CUDA 11.6)", "7.7 515 (CUDA 11.7)",
        "7.8 520 (CUDA 11.8)", "8.0 525 (CUDA 12.0)", "8.1 530 (CUDA 12.1)", "8.2 535 (CUDA 12.2)",
        "8.3 545 (CUDA 12.3)", "8.4 550 (CUDA 12.4)", "8.5 555 (CUDA 12.5)", "8.6 565 (CUDA 12.7)",
        "8.7 570 (CUDA 12.8)", "8.8 575 (CUDA 12.9)",
    ))
)  # fmt: skip
# Maps a target to the first version of PTX that supports it. Other targets start with "7.4".
_FIRST = MappingProxyType({"sm_89": "7.8", "sm_90a": "8.0", "sm_100a": "8.6", "sm_120a": "8.7"})
_CUDA_12 = "8.0"
NEWEST = 88  # version 8.8 of PTX, as Triton writes it
_VERSION = re.compile(r"^\.version (\S+)", re.MULTILINE)
_FLAGS = ("-lineinfo", "-suppress-debug-info", "--fmad=false", "-v", "--regAllocOptLevel=2")


def assemble(ptx: str, *, check_only: bool = False) -> tuple[str, bytes]:
    """Returns the text in the oldest version of PTX that has all its instructions, and its cubin.

    With `check_only`, the cubin is empty. Raises ToolError with the output of `ptxas`.
    """
    target = ptx_target(ptx)
    version = _FIRST.get(target, "7.4")
    while True:
        text = _VERSION.sub(f".version {version}", ptx, count=1)
        # A name such as compute_90 stands for a virtual architecture, for which ptxas checks the
        # text and produces no code.
        image, output = _run(text, target.replace("sm_", "compute_") if check_only else target)
        if image is not None:
            return text, image
        versions = re.findall(r"requires PTX ISA \.version (\d+\.\d+)", output)
        needed = max(versions, key=float, default=version)
        if float(needed) <= float(version):
            raise ToolError("ptxas refuses a kernel", why=output[-2000:])
        version = needed


def needed_driver(ptx: str, *, cubin: bool) -> str:
    """Returns the name of the oldest driver that loads the text, or its cubin if `cubin`."""
    match = _VERSION.search(ptx)
    version = match[1] if match else ""
    # The cubin comes from CUDA 12. Every driver for CUDA 12 that supports the GPU loads it, so only
    # the version of PTX that introduced the GPU counts.
    if cubin:
        version = max(_CUDA_12, _FIRST.get(ptx_target(ptx), _CUDA_12), key=float)
    return f"NVIDIA driver {_DRIVERS.get(version, version)}"


def _run(text: str, target: str) -> tuple[bytes | None, str]:
    with temporary_folder() as folder:
        cubin = folder / "kernel.cubin"
        (folder / "kernel.ptx").write_text(text)
        files = ("kernel.ptx", "-o", cubin.name)
        process = run_nvidia("ptxas", folder, *_FLAGS, f"--gpu-name={target}", *files)
        image = cubin.read_bytes() if cubin.exists() else b""
    return image if process.returncode == 0 else None, process.stderr or process.stdout
