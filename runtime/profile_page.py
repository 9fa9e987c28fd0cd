"""A profile as a page of HTML in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tcc.runtime.profile import Profile


def page_text(profile: Profile) -> str:
    return ""
