"""The folder in which tcc caches compiled files for a user.

The files become part of compiled programs, so nobody but the user may be able to write them.
"""

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
    """Returns the path of `tcc` in the user's cache folder; the folder may not exist.

    Raises ToolError if the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache").resolve() / "tcc"
    except RuntimeError as error:
        raise ToolError("there is no folder for the cache", why=str(error), hint=_HINT) from error


def make_own(folder: Path) -> None:
    """Creates the folder and its missing parents with access for the user alone.

    Returns without an error if the file system refuses. Raises ToolError if another user, who is
    not root, could have replaced the folder (`check_own`).
    """
    with suppress(OSError):
        for place in (*reversed(folder.parents), folder):
            place.mkdir(mode=0o700, exist_ok=True)
            check_own([place])


def check_own(paths: Iterable[Path]) -> None:
    """Raises ToolError if a user other than root and the caller could have replaced one of `paths`.

    The paths are absolute. The owner and mode of each path and of all its parents are checked. A
    missing path is an error too.
    """
    trusted, paths = _trusted(), {*paths}
    folders = {path.parent for path in paths}
    above = {place for folder in folders for place in (folder, *folder.parents)}
    for place in sorted(paths | above):
        try:
            status = place.lstat()
        except OSError as error:
            why, hint = f"{error.strerror}", f"remove {place.parent}"
            raise ToolError("the cache is damaged", where=str(place), why=why, hint=hint) from error
        if status.st_uid not in trusted:
            why = f"it belongs to another user, number {status.st_uid}"
        elif stat.S_ISLNK(status.st_mode):
            why = "it is a link"
        elif _others_write(status):
            why = "other users may write to it"
        else:
            continue
        raise ToolError("the cache cannot be trusted", where=str(place), why=why, hint=_HINT)


def _trusted() -> set[int]:
    owners = {0, os.geteuid()}
    # In a user namespace, the kernel shows unmapped owners, such as the host's root, as the
    # overflow user. So the overflow user is trusted too, except in the initial namespace.
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
        owners.add(int(Path("/proc/sys/fs/overflowuid").read_text()))
    return owners


def _others_write(status: os.stat_result) -> bool:
    """True if other users may write to the path.

    A sticky folder counts as safe, because other users cannot replace files in it.
    """
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False
    everyone, group = status.st_mode & stat.S_IWOTH, status.st_mode & stat.S_IWGRP
    return bool(everyone or (group and not _is_private(status.st_gid)))


def _is_private(group: int) -> bool:
    """True if the group gives access to nobody but the user and root.

    Two groups count: the group of root (number 0), and the user's primary group if it has the
    user's name and no other member. Many systems create such a group for each user.
    """
    with suppress(KeyError):
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
        if (user.pw_gid, user.pw_name) == (group, entry.gr_name):
            return {*entry.gr_mem} <= {user.pw_name}
    return group == 0
