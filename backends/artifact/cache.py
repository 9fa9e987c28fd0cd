"""The user's cache.  What is kept there becomes part of programs, so it must be the user's own."""

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tcc.errors import ToolError

_HINT = "set XDG_CACHE_HOME to a folder that belongs to you and that only you may write to"


def cache_folder() -> Path:
    """`tcc` in the user's cache folder; it may not be there.  Raises ToolError without a home."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache").resolve() / "tcc"
    except RuntimeError as error:
        raise ToolError("there is no folder for the cache", why=str(error), hint=_HINT) from error


def make_own(folder: Path) -> None:
    """Makes the folder, and those above it that are missing, for the user alone, as far as that can
    be done.  Raises ToolError as `check_own` does."""
    with suppress(OSError):
        for place in (*reversed(folder.parents), folder):
            place.mkdir(mode=0o700, exist_ok=True)
            check_own([place])


def check_own(paths: Iterable[Path]) -> None:
    """Raises ToolError if another user than root could have put something else at one of the paths,
    which are absolute: by its owner and mode, and by those of each folder above it; and where there
    is nothing."""
    trusted, paths = _trusted(), {*paths}
    folders = {path.parent for path in paths}
    above = {place for folder in folders for place in (folder, *folder.parents)}
    for place in sorted(paths | above):
        try:
            found = place.lstat()
        except OSError as error:
            why, hint = f"{error.strerror}", f"remove {place.parent}"
            raise ToolError("the cache is damaged", where=str(place), why=why, hint=hint) from error
        if found.st_uid not in trusted:
            why = f"it belongs to another user, number {found.st_uid}"
        elif stat.S_ISLNK(found.st_mode):
            why = "it is a link"
        elif _others_write(found):
            why = "other users may write to it"
        else:
            continue
        raise ToolError("the cache cannot be trusted", where=str(place), why=why, hint=_HINT)


def _trusted() -> set[int]:
    owners = {0, os.geteuid()}
    # In a user namespace the system's root may have the number of all who have none.
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        owners.add(int(Path("/proc/sys/fs/overflowuid").read_text()))
    return owners


def _others_write(found: os.stat_result) -> bool:
    """Where a folder is sticky others may write to it, but not replace what is not theirs."""
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return False
    everyone, group = found.st_mode & stat.S_IWOTH, found.st_mode & stat.S_IWGRP
    return bool(everyone or (group and not _is_private(found.st_gid)))


def _is_private(group: int) -> bool:
    """Whether a group is root's, or has the user's name and no other member, as many systems have
    it."""
    with suppress(KeyError):
        user, held = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
        if (user.pw_gid, user.pw_name) == (group, held.gr_name):
            return {*held.gr_mem} <= {user.pw_name}
    return group == 0
