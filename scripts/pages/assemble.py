"""Collects the pages of the site in a folder, and points their links at each other.

Pages stand beside the code that they are about, and link to files of the repository.  A link to a
file that is a page becomes a link to that page.  A link to a section of GUIDE.md becomes a link to
the page that has the section.  Pictures and every other file are copied, and linked there.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pages.navigation import PAGES, TROUBLESHOOTING, Page
from pages.troubleshooting import messages, page

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_FILES = "files"  # the folder of the site for copies of files that are no pages


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page, the file of the site that it becomes, and its Markdown before links are changed."""

    page: Page
    name: str
    text: str


class BrokenLinkError(Exception):
    """A page links to a file or a section that does not exist."""


def assemble(root: Path, folder: Path) -> list[dict[str, list[dict[str, str]]]]:
    """Writes all pages of the repository `root` into `folder`.

    Returns the menu as mkdocs wants it.  Raises BrokenLinkError for a link to nothing, and
    ValueError for a section that GUIDE.md lacks or that no page shows.
    """
    placed = [_placed(root, entry) for group in PAGES.values() for entry in group]
    _check_guide(root)
    links = _targets(placed)
    for item in placed:
        target = folder / item.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_linked(root, folder, item, links), encoding="utf-8")
    names = {item.page: item.name for item in placed}
    return [
        {title: [{entry.title: names[entry]} for entry in group]} for title, group in PAGES.items()
    ]


def _placed(root: Path, entry: Page) -> SitePage:
    if entry.source == TROUBLESHOOTING:
        return SitePage(
            entry, TROUBLESHOOTING, page(messages(root / "tests" / "errors" / "messages"))
        )
    text = (root / entry.source).read_text(encoding="utf-8")
    if entry.source == "README.md":
        return SitePage(entry, "index.md", text)
    name = f"{_slug(entry.title)}.md"
    if not entry.sections:
        return SitePage(entry, name, text)
    sections = guide_sections(text)
    missing = [title for title in entry.sections if title not in sections]
    if missing:
        raise ValueError(f"{entry.source} has no section {missing[0]!r}")
    body = "\n".join(sections[title] for title in entry.sections)
    return SitePage(entry, name, f"# {entry.title}\n\n{body}")


def guide_sections(text: str) -> dict[str, str]:
    """Returns the sections of a page by their heading of level 2; fences are left alone."""
    marked = _FENCE.sub(lambda block: block[0].replace("\n#", "\n\0#"), text)
    parts = re.split(r"^## (.+)$", marked, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {title: f"## {title}{body}".replace("\0", "") for title, body in pairs}


def _check_guide(root: Path) -> None:
    """Raises ValueError if a section of GUIDE.md is on no page."""
    sections_of_pages = {s for group in PAGES.values() for entry in group for s in entry.sections}
    sections = guide_sections((root / "GUIDE.md").read_text(encoding="utf-8"))
    if lost := [title for title in sections if title not in sections_of_pages]:
        raise ValueError(f"GUIDE.md: no page of the site shows the section {lost[0]!r}")


def _targets(placed: list[SitePage]) -> Mapping[tuple[str, str], str]:
    """Returns the place of each source, and of each of its headings, as (source, anchor)."""
    targets: dict[tuple[str, str], str] = {}
    for item in placed:
        source = item.page.source
        targets.setdefault((source, ""), item.name)
        for heading in re.findall(r"^#{2,4} (.+)$", _FENCE.sub("", item.text), re.MULTILINE):
            anchor = _slug(heading)
            targets.setdefault((source, anchor), f"{item.name}#{anchor}")
    return targets


def _linked(root: Path, folder: Path, item: SitePage, links: Mapping[tuple[str, str], str]) -> str:
    """Returns a page's text with links for the site, and copies the files that it links to."""
    base = posixpath.dirname(item.page.source)

    def replaced(match: re.Match[str]) -> str:
        link = match[2]
        if re.match(r"\w+:", link):
            return match[0]
        path, _, anchor = link.partition("#")
        source = posixpath.normpath(posixpath.join(base, path)) if path else item.page.source
        target = links.get((source, anchor))
        if target is None and anchor and (source, "") in links:
            raise BrokenLinkError(f"{item.page.source}: {link}: there is no such section")
        return f"{match[1]}{target or _copied(root, folder, item, source)}{match[3]}"

    return "".join(
        part if is_code else _LINK.sub(replaced, part) for part, is_code in _parts(item.text)
    )


def _copied(root: Path, folder: Path, item: SitePage, source: str) -> str:
    """Copies a file of the repository to the site and returns its place there.

    A folder stands for its README, or for the list of its files.
    """
    # mkdocs leaves out files and folders whose names begin with a dot.
    path, target = root / source, folder / _FILES / source.replace("/.", "/").lstrip(".")
    if source.startswith("..") or not path.exists():
        raise BrokenLinkError(f"{item.page.source}: there is no file {source}")
    if path.is_dir():
        readme = path / "README.md"
        if readme.exists():
            return _copied(root, folder, item, f"{source}/README.md")
        listing = folder / _FILES / source / "files.txt"
        listing.parent.mkdir(parents=True, exist_ok=True)
        listing.write_text("".join(f"{n}\n" for n in sorted(os.listdir(path))), encoding="utf-8")
        return f"{_FILES}/{source}/files.txt"
    # The site would turn Markdown into pages without a place in the menu.
    target = target.with_name(f"{target.name}.txt") if target.suffix == ".md" else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    return str(target.relative_to(folder))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the parts of a page with True for code, in which nothing is a link."""
    end = 0
    for block in re.finditer(f"{_FENCE.pattern}|{_CODE.pattern}", text, re.MULTILINE | re.DOTALL):
        yield text[end : block.start()], False
        yield block[0], True
        end = block.end()
    yield text[end:], False


def _slug(heading: str) -> str:
    """Returns the anchor of a heading, as Markdown's table of contents makes it."""
    text = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", text)
