"""Rules that kernels of the models are known to break, with the reasons; see `gpu_compile`."""

from __future__ import annotations

from gpu.observe import Known

KNOWN = (
    Known(
        "fsrcnn",
        "f32",
        ("gfx1100",),
        "layers.0/Conv",
        "registers suffice",
        "RDNA multiplies f32 without matrix units: one schedule serves all GPUs of a vendor, and "
        "its block of sums has more values than the 256 registers of a lane here",
    ),
)
