"""The colour of each resource that limits a step, in charts and pictures."""

from __future__ import annotations

from types import MappingProxyType

# The colour of each limit: Observable's palette of ten, which readers with weak colour vision tell
# apart.
COLOURS = MappingProxyType(
    {
        "compute": "#4269d0",
        "ports": "#a463f2",
        "L1": "#97bbf5",
        "L2": "#6cc5b0",
        "L3": "#3ca951",
        "memory": "#ff725c",
        "imbalance": "#efb118",
        "launch": "#9c6b4e",
        "": "#9498a0",
    }
)


def colour(limit: str) -> str:
    """Returns the colour of a limit, in CSS."""
    return COLOURS.get(limit, COLOURS[""])
