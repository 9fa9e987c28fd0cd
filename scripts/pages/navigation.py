"""The pages of the site, in the order of its menu."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the site.

    `source` is a file of the repository.  With `sections`, the page has only these sections of the
    file (headings of level 2).
    """

    title: str
    source: str
    sections: tuple[str, ...] = ()


def _guide(title: str, *sections: str) -> Page:
    return Page(title, "GUIDE.md", sections)


# The page that scripts/site writes from the texts of tests/errors.
TROUBLESHOOTING = "troubleshooting.md"

PAGES: Mapping[str, tuple[Page, ...]] = MappingProxyType({
    "Start": (
        Page("Start", "README.md"),
        _guide("Commands", "Commands"),
        _guide("Inputs", "Pictures, sounds and other files"),
        Page("Examples", "models/examples/README.md"),
    ),
    "Models": (
        Page("Exporting", "compiler/frontends/EXPORTING.md"),
        _guide("Sizes, states, memory", "Models"),
        _guide("Language models", "Language models"),
        _guide("PyTorch and tvm-ffi", "PyTorch and tvm-ffi", "Random numbers"),
        Page("Precision modes", "passes/quantize/PRECISION.md"),
        _guide("Numerics", "Precision"),
    ),
    "Deploy": (
        Page("Deploying", "runtime/DEPLOYING.md"),
        _guide("C, C++ and Rust", "C++, Rust and static libraries", "C files", "Ending a run"),
        _guide("GPUs and other processors", "GPUs", "Other processors"),
        _guide("Many processes", "Dividing a model among processes", "Models with collectives"),
        _guide("Variables", "Environment variables"),
        Page("Serving", "runtime/SERVING.md"),
        Page("Versions", "backends/artifact/VERSIONS.md"),
        Page("Security", "SECURITY.md"),
    ),
    "Speed": (
        _guide("Profile", "Where the time goes", "The graph of an artifact",
               "Why a kernel is slow"),
        _guide("Tuning", "Measure other schedules", "Keep the same kernels after an upgrade",
               "Tuning in CI in ten lines", "Choices of the compiler"),
        _guide("Benchmarks", "Speed"),
        Page("Beside other tools", "scripts/peers/FEATURES.md"),
    ),
    "Help": (
        Page("Troubleshooting", TROUBLESHOOTING),
        Page("Operators", "compiler/ops/TABLE.md"),
        Page("Correctness", "tests/CORRECTNESS.md"),
        Page("Changes", "CHANGELOG.md"),
    ),
    "Develop": (
        Page("Architecture", "ARCHITECTURE.md"),
        Page("Contributing", "CONTRIBUTING.md"),
    ),
})  # fmt: skip
