"""The order of the graph passes, as data."""

from __future__ import annotations

from collections.abc import Sequence

from tcc.options import Options
from tcc.passes.manager import Pass


def pipeline(options: Options) -> Sequence[Pass]:
    """The passes of one compile, in order."""
    return ()
