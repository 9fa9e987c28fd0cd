"""A profile in a notebook: its longest steps as a table, without libraries."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tcc.runtime.module_text import html_table
from tcc.runtime.units import duration

if TYPE_CHECKING:
    from tcc.runtime.profile import ModuleProfile

_ROWS = 10
_HEADS = ("step", "node", "us", "share", "predicted us", "limit")


def profile_html(profile: ModuleProfile) -> str:
    """Returns the longest steps of a profile as a table of HTML, under a line with its times."""
    rows = [
        (
            step.fact.name,
            step.fact.location,
            f"{step.seconds * 1e6:.1f}",
            f"{step.share:.1%}",
            "" if step.predicted is None else f"{step.predicted * 1e6:.1f}",
            step.fact.limit,
        )
        for step in profile.steps[:_ROWS]
    ]
    line = f"{profile.name}: {duration(profile.seconds)} a run, {profile.threads_text}"
    more = len(profile.steps) - len(rows)
    last_line = f"<p>{more} shorter steps</p>" if more > 0 else ""
    return f"<p>{escape(line)}</p>{html_table(_HEADS, rows)}{last_line}"
