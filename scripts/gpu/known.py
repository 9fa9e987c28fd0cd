"""Rules that kernels of the models are known to break, with the reasons; see `gpu_compile`."""

from __future__ import annotations

from gpu.observe import Known

KNOWN: tuple[Known, ...] = ()
