"""Tests of the cache: tcc links only files that the user or root put there."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from pathlib import Path
from types import SimpleNamespace

import programs
import pytest
from tcc.backends.artifact.cache import cache_folder, check_own, make_own
from tcc.backends.artifact.toolchain import find_toolchain, runtime_objects
from tcc.errors import ToolError

HINT = "set XDG_CACHE_HOME to a folder that belongs to you and that only you may write to"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Returns a file of the user's in folders of the user's."""
    path = tmp_path / "home" / "cache" / "kept.o"
    path.parent.mkdir(parents=True, mode=0o755)
    path.parent.parent.chmod(0o755)
    path.parent.chmod(0o755)
    path.touch(0o644)
    path.chmod(0o644)
    return path


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Gives the file to another user and returns the user's number."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
        return 12345
    owner = path.lstat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    return owner


def refusal(path: Path) -> str:
    with pytest.raises(ToolError) as caught:
        check_own([path])
    return str(caught.value)


def test_files_that_only_the_user_can_write_are_accepted(kept: Path) -> None:
    check_own([kept])
    for folder in (kept.parent, kept.parent.parent):
        folder.chmod(0o700)
    check_own([kept])


@pytest.mark.parametrize("above", range(3), ids=["the file", "its folder", "a folder above"])
def test_nobody_else_may_write(above: int, kept: Path) -> None:
    place = (kept, *kept.parents)[above]
    place.chmod(0o777)
    assert refusal(kept) == (
        "the cache cannot be trusted\n"
        f"  at: {place}\n"
        "  because: other users may write to it\n"
        f"  to do: {HINT}"
    )


@pytest.mark.parametrize("above", range(2), ids=["the file", "its folder"])
def test_files_of_another_owner_are_refused(
    above: int, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = give_away((kept, *kept.parents)[above], monkeypatch)
    assert f"it belongs to another user, number {owner}" in refusal(kept)


def test_a_sticky_folder_is_accepted_unless_the_entry_belongs_to_another_user(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sticky folder like /tmp is accepted, unless another user owns the entry in it."""
    kept.parent.parent.chmod(0o1777)
    check_own([kept])
    give_away(kept.parent, monkeypatch)
    assert "belongs to another user" in refusal(kept)


def test_a_group_may_write_if_the_user_is_alone_in_it(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = SimpleNamespace(pw_name="ada", pw_gid=1000)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
    if os.geteuid() == 0:
        os.chown(kept, -1, 1000)
    else:
        user.pw_gid = kept.stat().st_gid
    kept.chmod(0o664)
    group = SimpleNamespace(gr_name="ada", gr_mem=[])
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    check_own([kept])
    group.gr_mem = ["ada"]
    check_own([kept])
    group.gr_mem = ["ada", "eve"]
    assert "other users may write to it" in refusal(kept)
    group.gr_name, group.gr_mem = "staff", []
    assert "other users may write to it" in refusal(kept)


def test_a_link_is_not_followed(kept: Path) -> None:
    link = kept.with_name("link.o")
    link.symlink_to(kept)
    assert "it is a link" in refusal(link)


def test_the_error_names_a_removed_file(kept: Path) -> None:
    kept.unlink()
    assert refusal(kept) == (
        "the cache is damaged\n"
        f"  at: {kept}\n"
        "  because: No such file or directory\n"
        f"  to do: remove {kept.parent}"
    )


def test_new_folders_are_the_users_alone_whatever_the_mask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make_own(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert [(tmp_path / p).stat().st_mode & 0o777 for p in ("a", "a/b")] == [0o700, 0o700]
    check_own([tmp_path / "a" / "b"])


def test_a_cache_in_a_shared_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ToolError, match="other users may write to it"):
        make_own(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(ToolError) as caught:
        cache_folder()
    assert str(caught.value) == (
        "there is no folder for the cache\n"
        "  because: Could not determine home directory.\n"
        f"  to do: {HINT}"
    )


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of the compiled runtime in a new cache."""
    built_folder = runtime_objects(find_toolchain())[0].parent
    folder = tmp_path / "cache" / "tcc" / built_folder.name
    make_own(folder.parent)
    shutil.copytree(built_folder, folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert runtime_objects(find_toolchain())[0].parent == folder
    return folder


def test_planted_objects_are_not_linked(
    copied: Path, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, weights = programs.mlp()
    give_away(copied / "src_model.o", monkeypatch)
    with pytest.raises(ToolError, match="it belongs to another user"):
        programs.link(program, kernels, tmp_path / "x.so", weights=[weights])
    assert not (tmp_path / "x.so").exists()


def test_the_cache_may_be_named_by_a_relative_path(
    copied: Path, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    program, weights = programs.mlp()
    programs.link(program, kernels, tmp_path / "x.so", weights=[weights])
