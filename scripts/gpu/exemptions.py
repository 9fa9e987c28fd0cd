"""Lists the rules that kernels of the models break, with the reasons; see `gpu_compile`."""

from __future__ import annotations

from gpu.observe import Exemption

EXEMPTIONS: tuple[Exemption, ...] = ()
