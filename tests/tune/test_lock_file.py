"""Lock files are read as written, and hostile files raise errors that name a line."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from tcc.errors import UserError
from tcc.passes.choose.choices_file import read_lines, read_row
from tcc.tune import lock_file
from tcc.tune.lock import CHANGED, KEPT, PINNED, SKIPPED, Lock, LockEntry
from tcc.tune.lock_file import lock_text, read_lock, update_lock

HOME, OTHER = ("cpu:x86-64 (znver4)", 2), ("cuda:sm_80", 108)
ENTRIES = (
    LockEntry("0" * 32, "schedule: sum: f32[4,4]", PINNED, "join"),
    LockEntry("1" * 32, "schedule: sum: f32[4,5]", CHANGED, "Knobs(panel=2)", (1.46, 1.38)),
    LockEntry("2" * 32, "schedule: sum: f32[4,6]", KEPT, None, (1.01, 0.99)),
    LockEntry("3" * 32, "schedule: sum: f32[4,7]", SKIPPED),
)
LOCK = Lock().with_entries([*((HOME, e) for e in reversed(ENTRIES)), (OTHER, ENTRIES[0])])
TEXT = lock_text(LOCK)


def read(folder: Path, text: str | bytes) -> Lock:
    file = folder / "tcc.lock.json"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_lock(file)


def records(lock: Lock) -> list[tuple[object, list[dict[str, object]]]]:
    return [(home, [e.record for e in section.values()]) for home, section in lock.sections.items()]


def test_a_lock_is_json_sorted_and_parses_back(tmp_path: Path) -> None:
    lock = read(tmp_path, TEXT)
    assert lock_text(lock) == TEXT
    assert lock.count == 5
    rows = json.loads(TEXT)["targets"]
    assert [(row["target"], row["cores"]) for row in rows] == [HOME, OTHER]
    assert [e["site"] for e in rows[0]["entries"]] == [e.site for e in ENTRIES]
    assert [e["verdict"] for e in rows[0]["entries"]] == [e.verdict for e in ENTRIES]
    assert TEXT.count("\n") == 5 + 2 * 2 + 2  # one entry per line
    assert [e.line for e in lock.sections[HOME].values()] == [3, 4, 5, 6]
    assert lock.sha256 == sha256(TEXT.encode()).hexdigest()


def test_an_empty_lock_parses_back(tmp_path: Path) -> None:
    assert read(tmp_path, lock_text(Lock())).count == 0


def test_entries_of_a_lock_are_lines_for_choices(tmp_path: Path) -> None:
    file = tmp_path / "choices.jsonl"
    entries = [line.rstrip(",") for line in TEXT.splitlines() if '"pinned"' in line][:1]
    file.write_text("\n".join(entries))
    (line,) = read_lines(file)
    assert (line.site, line.alternative) == ("0" * 32, "join")


# ---- hostile files ------------------------------------------------------------------------------

LINES = TEXT.splitlines(keepends=True)


def changed(line: int, change: Callable[[str], str]) -> str:
    lines = [*LINES]
    lines[line - 1] = change(lines[line - 1])
    return "".join(lines)


DEEP = "[" * 100_000
HOSTILE = {
    "no JSON": ("hello\n", 1, "does not open a list"),
    "another list": ("[\n", 1, "JSON"),
    "nothing": ("", 1, "the file ends here"),
    "null bytes": (b"\0" * 5000, 1, "does not open a list"),
    "other version": (changed(1, lambda s: s.replace("1", "2", 1)), 1, "version"),
    "version true": (changed(1, lambda s: s.replace("1", "true", 1)), 1, "version"),
    "more in the head": (changed(1, lambda s: s.replace("{", '{"x": 1, ', 1)), 1, "begin with"),
    "one line": (json.dumps(json.loads(TEXT)), 1, "does not open a list"),
    "deep": (changed(3, lambda s: s.replace("null", DEEP, 1)), 3, "JSON"),
    "deep head": (LINES[0].replace("[", DEEP), 1, "JSON"),
    "long line": (changed(3, lambda s: s.replace("join", "j" * (1 << 20))), 3, "KiB"),
    "key twice": (changed(3, lambda s: s.replace("{", '{"site": "x", ', 1)), 3, "twice"),
    "NaN": (changed(4, lambda s: s.replace("1.46", "NaN")), 4, "NaN is no number"),
    "infinity": (changed(4, lambda s: s.replace("1.46", "1e999")), 4, "gain"),
    "long number": (changed(4, lambda s: s.replace("1.46", "1" * 100_000)), 4, "40 characters"),
    "long float": (changed(4, lambda s: s.replace("1.46", "1." + "1" * 99)), 4, "40 characters"),
    "bool": (changed(4, lambda s: s.replace("1.46", "true")), 4, "gain"),
    "negative": (changed(4, lambda s: s.replace("1.46", "-1.46")), 4, "gain"),
    "short site": (changed(3, lambda s: s.replace("0" * 32, "0" * 31)), 3, "digest"),
    "site of no text": (changed(3, lambda s: s.replace(f'"{"0" * 32}"', "7")), 3, "digest"),
    "op missing": (changed(3, lambda s: s.replace('"op"', '"up"')), 3, "an entry has"),
    "other key": (changed(3, lambda s: s.replace("{", '{"note": 1, ', 1)), 3, "an entry has"),
    "verdict": (changed(3, lambda s: s.replace("pinned", "nailed")), 3, "verdict"),
    "verdict of no text": (changed(3, lambda s: s.replace('"pinned"', "[1]")), 3, "verdict"),
    "no choice": (changed(3, lambda s: s.replace('"join"', "null")), 3, "alternative"),
    "kept choice": (changed(5, lambda s: s.replace("null", '"join"', 1)), 5, "alternative"),
    "choice of no text": (changed(5, lambda s: s.replace("null", "[]", 1)), 5, "no text"),
    "same site": (changed(4, lambda s: s.replace("1" * 32, "0" * 32)), 4, "line 3"),
    "same section": ("".join([*LINES[:7], *LINES[1:]]), 8, "another section"),
    "no comma": (changed(3, lambda s: s.replace("},", "}")), 4, "comma"),
    "comma at the end": (changed(6, lambda s: s.replace("}\n", "},\n")), 7, "comma"),
    "cores": (changed(2, lambda s: s.replace(" 2,", " 0,")), 2, "cores"),
    "cores of no number": (changed(2, lambda s: s.replace(" 2,", ' "2",')), 2, "cores"),
    "conflict": ("".join([*LINES[:3], "<<<<<<< HEAD\n", *LINES[3:]]), 4, "conflict"),
    "torn": (TEXT[: len(TEXT) // 2], 5, ""),
    "torn at a line": ("".join(LINES[:4]), 5, "the file ends here"),
    "more": (TEXT + "x\n", 11, "follows the end"),
    "no UTF-8": (TEXT.encode().replace(b"join", b"jo\xff"), 3, "JSON"),
    "surrogates": (changed(3, lambda s: s.replace("join", "\\ud800")), 3, "surrogate"),
    "an empty line": ("".join([LINES[0], "\n", *LINES[1:]]), 2, "does not open a list"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_errors_with_their_line(tmp_path: Path, name: str) -> None:
    text, line, why = HOSTILE[name]
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    assert error.value.where == f"--tuned {tmp_path / 'tcc.lock.json'}, line {line}"
    assert why in error.value.why
    assert error.value.exit_code == 2


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(5 << 30)
    for path in (tmp_path / "missing", tmp_path, pipe, large, Path("/dev/zero")):
        with pytest.raises(UserError) as error:
            read_lock(path)
        assert error.value.where == f"--tuned {path}"


# ---- writing ------------------------------------------------------------------------------------


def test_an_update_keeps_other_entries_and_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "tcc.lock.json"
    update_lock(path, lambda old: old.with_entries([(HOME, ENTRIES[0])]))
    update_lock(path, lambda old: old.with_entries([(HOME, ENTRIES[2]), (OTHER, ENTRIES[0])]))
    assert [*read_lock(path).sections[HOME]] == ["0" * 32, "2" * 32]
    before = path.read_bytes()

    def fails(old: Lock) -> Lock:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_lock(path, fails)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


def test_a_full_disk_leaves_the_old_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tcc.lock.json"
    path.write_text(TEXT)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError) as error:
        update_lock(path, lambda old: old.with_entries([(HOME, ENTRIES[0])]))
    assert "No space" in error.value.why
    assert path.read_text() == TEXT
    assert [*tmp_path.iterdir()] == [path]


def test_a_damaged_lock_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "tcc.lock.json"
    path.write_text(TEXT[:200])
    with pytest.raises(UserError):
        update_lock(path, lambda old: old)
    assert path.read_text() == TEXT[:200]


def test_a_link_stays_a_link_and_a_new_file_has_usual_rights(tmp_path: Path) -> None:
    path, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(path)
    mask = os.umask(0o027)
    try:
        update_lock(link, lambda old: old.with_entries([(HOME, ENTRIES[0])]))
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_processes_that_update_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tcc.lock.json"
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            for step in range(10):
                entry = LockEntry(f"{number * 10 + step:032x}", "op", KEPT)
                update_lock(path, lambda old, entry=entry: old.with_entries([(HOME, entry)]))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert read_lock(path).count == 40


# ---- the quick reader of written lines ----------------------------------------------------------


def entries_of(line: str) -> tuple[LockEntry | None, LockEntry | str]:
    """Returns the entry that the quick reader finds in a line, and the entry or the error of the
    JSON reader."""
    quick = lock_file._written_entry(line.encode(), 7)
    try:
        return quick, lock_file._entry(read_row(line.encode().removesuffix(b",")), 7)
    except ValueError as error:
        return quick, str(error)


def test_the_quick_reader_reads_written_lines_as_a_json_reader_does() -> None:
    random, lines = Random(3), [line.strip() for line in TEXT.splitlines() if '"site"' in line]
    assert len(lines) == 5
    for line in lines:
        quick, exact = entries_of(line)
        assert quick == exact
    read = 0
    for _ in range(20_000):
        letters = [*random.choice(lines)]
        for _ in range(random.choice((1, 1, 2, 3))):
            place = random.randrange(len(letters))
            piece = random.choice(
                ['"', "\\", "0", "01", ".5", "é", "null", " ", "x", "", "\t", ",", "}"]
            )
            letters[place : place + random.randrange(2)] = piece
        quick, exact = entries_of("".join(letters))
        if quick is not None:
            assert quick == exact
            read += 1
    assert read > 500


def test_the_quick_reader_leaves_odd_numbers_to_the_json_reader(tmp_path: Path) -> None:
    for ratio, why in (("01.46", "JSON"), ("1.46e999", "gain"), ("0.0", "gain")):
        with pytest.raises(UserError, match=why):
            read(tmp_path, changed(4, lambda s, r=ratio: s.replace("1.46", r)))
