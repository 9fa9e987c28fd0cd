"""What pages name exists: files of tables, scripts, commands and their options."""

import os
import re
from pathlib import Path

import pytest
from tcc.cli.commands import COMMANDS, cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page
    for page in sorted(ROOT.rglob("*.md"))
    if not {".venv", "build", "results", "node_modules"} & set(page.relative_to(ROOT).parts)
]
PAGE = 60  # lines of a README; generated tables do not count
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAG = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")
NAMED = re.compile(r"[\w./]+(\.(py|c|h|S|md|txt|toml)|/)|[\w/]+")


def commands(text: str) -> list[str]:
    """The shell commands of a page: in sentences, and in blocks."""
    blocks = [
        line.partition("    #")[0].strip() for b in BLOCK.findall(text) for line in b.splitlines()
    ]
    found = [*CODE.findall(text), *blocks]
    return [command for command in found if re.match(r"(tcc|scripts/\w+)( |$)", command)]


def table_files(page: Path) -> list[tuple[str, Path]]:
    """The names in the first column of a page's tables of files; a name without a folder lies in
    that of the name before it."""
    found, in_table = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        cell = line.split("|")[1] if line.startswith("|") else ""
        if not line.startswith("|"):
            in_table = False
        elif cell.strip() in ("file", "module", "script", "room", "folder"):
            in_table = True
        elif in_table:
            folder = page.parent
            for name in CODE.findall(cell):
                if NAMED.fullmatch(name):
                    here = page.parent / name if "/" in name else folder / name
                    folder = here.parent if "/" in name.rstrip("/") else folder
                    found.append((name, here))
    return found


def unknown(command: str) -> list[str]:
    """What of a command does not exist: the program, its command, or options."""
    program, *words = command.split()
    if program == "tcc":
        if not words or words[0] in ("COMMAND", "--version", "--help"):
            return []
        if words[0] not in COMMANDS:
            return [command]
        options = {n for o in cli.get_command(None, words[0]).params for n in o.opts}
    else:
        script = ROOT / program
        if not script.exists():
            return [command]
        if program == "scripts/test" or not os.access(script, os.X_OK) or script.is_dir():
            return []  # pytest's arguments; no program
        options = set(FLAG.findall(script.read_text(encoding="utf-8")))
    asked = FLAG.findall(" ".join(words))
    return [f"{command}: {flag}" for flag in asked if flag not in options | {"--help"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_there_is(page: Path) -> None:
    files = [
        name
        for name, path in table_files(page)
        if not path.exists() and not path.with_suffix(".py").exists()
    ]
    text = page.read_text(encoding="utf-8")
    assert files + [fault for command in commands(text) for fault in unknown(command)] == []


def test_readmes_are_a_page() -> None:
    long = {}
    for page in PAGES:
        kept = re.sub(
            r"<!-- begin generated.*?<!-- end generated",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )
        if page.name == "README.md" and not 3 <= len(kept.splitlines()) <= PAGE:
            long[str(page.relative_to(ROOT))] = len(kept.splitlines())
    assert long == {}
