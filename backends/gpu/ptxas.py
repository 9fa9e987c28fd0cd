"""NVIDIA's assembler, which comes with Triton: PTX to machine code that old drivers load too.

Triton bundles that of CUDA 12.9, whose machine code loads with every driver for CUDA 12, and that
of CUDA 13, whose does not; Triton itself takes the latter from sm_90 on.
"""

import re
from types import MappingProxyType

from tcc.backends.gpu.machine_code import ptx_target, run_nvidia
from tcc.errors import ToolError
from tcc.temporary import temporary_folder

# Version of PTX -> NVIDIA's driver and the CUDA with which it came ("Release History" of the PTX
# ISA manual, table 3 of CUDA's release notes).  Older drivers lack functions that tcc calls.
_DRIVERS = MappingProxyType(
    dict(row.split(" ", 1) for row in (
        "7.4 470 (CUDA 11.4)", "7.5 495 (CUDA 11.5)", "7.6 510 (CUDA 11.6)", "7.7 515 (CUDA 11.7)",
        "7.8 520 (CUDA 11.8)", "8.0 525 (CUDA 12.0)", "8.1 530 (CUDA 12.1)", "8.2 535 (CUDA 12.2)",
        "8.3 545 (CUDA 12.3)", "8.4 550 (CUDA 12.4)", "8.5 555 (CUDA 12.5)", "8.6 565 (CUDA 12.7)",
        "8.7 570 (CUDA 12.8)", "8.8 575 (CUDA 12.9)",
    ))
)  # fmt: skip
# The first version with each target; "7.4" for those not here.
_FIRST = MappingProxyType({"sm_89": "7.8", "sm_90a": "8.0", "sm_100a": "8.6", "sm_120a": "8.7"})
_CUDA_12 = "8.0"
NEWEST = 88  # in Triton's words
_VERSION = re.compile(r"^\.version (\S+)", re.MULTILINE)
_FLAGS = ("-lineinfo", "-suppress-debug-info", "--fmad=false", "-v", "--regAllocOptLevel=2")


def assembled(ptx: str, *, check_only: bool = False) -> tuple[str, bytes]:
    """The text in the oldest version of PTX that has all its instructions, and its cubin, which is
    empty with `check_only`.  Raises ToolError with what `ptxas` says."""
    target = ptx_target(ptx)
    version = _FIRST.get(target, "7.4")
    while True:
        text = _VERSION.sub(f".version {version}", ptx, count=1)
        # of a virtual architecture the text is read, and no more
        image, said = _run(text, target.replace("sm_", "compute_") if check_only else target)
        if image is not None:
            return text, image
        asked = re.findall(r"requires PTX ISA \.version (\d+\.\d+)", said)
        needed = max(asked, key=float, default=version)
        if float(needed) <= float(version):
            raise ToolError("ptxas refuses a kernel", why=said[-2000:])
        version = needed


def needed_driver(ptx: str, *, cubin: bool) -> str:
    """The oldest driver that loads the text, or its cubin."""
    found = _VERSION.search(ptx)
    version = found[1] if found else ""
    if cubin:  # of a major version of CUDA all drivers do that know the GPU
        version = max(_CUDA_12, _FIRST.get(ptx_target(ptx), _CUDA_12), key=float)
    return f"NVIDIA driver {_DRIVERS.get(version, version)}"


def _run(text: str, target: str) -> tuple[bytes | None, str]:
    with temporary_folder() as folder:
        made = folder / "kernel.cubin"
        (folder / "kernel.ptx").write_text(text)
        files = ("kernel.ptx", "-o", made.name)
        done = run_nvidia("ptxas", folder, *_FLAGS, f"--gpu-name={target}", *files)
        image = made.read_bytes() if made.exists() else b""
    return image if done.returncode == 0 else None, done.stderr or done.stdout
