"""The kernels of models that break a rule of `gpu_compile` for now, with the reasons."""

from __future__ import annotations

from gpu.observe import Exemption

EXEMPTIONS: tuple[Exemption, ...] = ()
