"""Files, scripts, commands and options that pages name exist."""

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
WORDS, COLUMNS = 600, 160  # the limits of a README, without generated tables
ENTRIES = 12  # the limit under one heading of a DECISIONS.md
ENTRY = re.compile(r"- |\d{4}-\d\d")
CODE = re.compile(r"`([^`\n]+)`")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAG = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")
PATH = re.compile(r"(tests|scripts)/[\w./-]+(::\w+)?")
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
NAMED = re.compile(r"[\w./]+(\.(py|c|h|S|md|txt|toml)|/)|[\w/]+")


def commands(text: str) -> list[str]:
    """Returns the shell commands of a page, from its sentences and its code blocks."""
    blocks = [
        line.partition("    #")[0].strip() for b in BLOCK.findall(text) for line in b.splitlines()
    ]
    texts = [*CODE.findall(text), *blocks]
    return [command for command in texts if re.match(r"(tcc|scripts/\w+)( |$)", command)]


def table_files(page: Path) -> list[tuple[str, Path]]:
    """Returns (name, path) pairs from the first column of a page's tables of files; a name without
    a folder lies in the folder of the name before it."""
    tables, in_table = [], False
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
                    tables.append((name, here))
    return tables


def missing_paths(page: Path) -> list[str]:
    """Returns the tests, scripts and link targets that the page names and that do not exist."""
    text = page.read_text(encoding="utf-8")
    named = [word for code in CODE.findall(text) for word in code.split() if PATH.fullmatch(word)]
    paths = {word: ROOT / word.split("::")[0] for word in named}
    missing = [
        word
        for word, path in paths.items()
        if not path.exists() and not [*path.parent.glob(f"{path.name}.*")]
    ]
    links = [link.split("#")[0] for link in LINK.findall(text)]
    return missing + [link for link in links if link and not (page.parent / link).exists()]


def unknown(command: str) -> list[str]:
    """Returns the parts of a command that do not exist: the program, its subcommand, or options."""
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
            return []  # scripts/test takes pytest's arguments; a file that cannot run is no program
        options = set(FLAG.findall(script.read_text(encoding="utf-8")))
    flags = FLAG.findall(" ".join(words))
    return [f"{command}: {flag}" for flag in flags if flag not in options | {"--help"}]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_exists(page: Path) -> None:
    files = [
        name
        for name, path in table_files(page)
        if not path.exists() and not path.with_suffix(".py").exists()
    ]
    text = page.read_text(encoding="utf-8")
    assert files + [fault for command in commands(text) for fault in unknown(command)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_scripts_and_links_of_a_page_are_there(page: Path) -> None:
    assert missing_paths(page) == []


def test_the_page_on_security_names_tests_and_scripts() -> None:
    """A page in another format would pass without a check."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    words = [word for code in CODE.findall(text) for word in code.split() if PATH.fullmatch(word)]
    assert sum(word.startswith("tests/") for word in words) > 12
    assert sum(word.startswith("scripts/") for word in words) > 5
    assert len(text.split()) <= 900
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "](SECURITY.md)" in (ROOT / page).read_text(encoding="utf-8")


def written(page: Path) -> str:
    """Returns the text of a page without its generated tables."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"<!-- begin generated.*?<!-- end generated", "", text, flags=re.DOTALL)


def test_readmes_are_short() -> None:
    texts = {str(p.relative_to(ROOT)): written(p) for p in PAGES if p.name == "README.md"}
    assert len(texts) > 40
    words = {name: len(text.split()) for name, text in texts.items()}
    assert {name: count for name, count in words.items() if not 20 <= count <= WORDS} == {}
    lines = [(name, line) for name, text in texts.items() for line in text.splitlines()]
    assert [(name, line) for name, line in lines if len(line) > COLUMNS] == []


def sections(text: str) -> dict[str, int]:
    """Returns the number of entries under each heading of a page of decisions.

    The key "" counts the entries before the first heading. An entry is an item of a list, or a
    paragraph that begins with a date.
    """
    counts, heading = {"": 0}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
            assert heading not in counts, heading
            counts[heading] = 0
        counts[heading] += bool(ENTRY.match(line))
    return counts


def test_decisions_stand_under_subjects() -> None:
    pages = [page for page in PAGES if page.name == "DECISIONS.md"]
    assert len(pages) > 8
    faults = []
    for page in pages:
        counts = sections(page.read_text(encoding="utf-8"))
        assert sum(counts.values()) > 0, page
        faults += [
            f"{page.relative_to(ROOT)}, {heading or 'no heading'}: {count} entries"
            for heading, count in counts.items()
            if count > (ENTRIES if heading else 0)
        ]
    assert faults == []


def test_sections_are_counted() -> None:
    text = "# D\n\n- early\n\n## One\n\n- a\n  b\n\n2026-11: c.\nContext: d\n\n## Two\n"
    assert sections(text) == {"": 1, "One": 2, "Two": 0}
