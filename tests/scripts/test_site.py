"""The documentation site: every link leads somewhere, pages fit phones, and nothing is fetched."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser import browser
from tests.processes import finished

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from pages.assemble import BrokenLinkError, assemble, guide_sections
from pages.navigation import PAGES
from pages.troubleshooting import messages, page

WIDTHS = (400, 1300)
# Loads each page in a frame of each width, and records how much wider than its frame the page is.
# The test page is loaded when all frames are.
_HARNESS = """<!doctype html><body><pre id="result"></pre><script>
const frames = [];
for (const name of PAGES) for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  frame.src = name;
  frames.push([name, width, frame]);
  document.body.append(frame);
}
window.onload = () => {
  const rows = frames.map(([name, width, frame]) => [
    name, width, frame.contentDocument.documentElement.scrollWidth, frame.contentDocument.title]);
  document.getElementById("result").textContent = JSON.stringify(rows);
};
</script>"""
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--enable-logging=stderr", "--window-size=1400,1000", "--dump-dom",
)  # fmt: skip


class Links(HTMLParser):
    """Collects the links of a page, its anchors, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        for name in ("src", "href"):
            if tag in ("script", "link", "img", "iframe") and name in values:
                self.fetched.append(values[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    output: Path = tmp_path_factory.mktemp("site") / "html"
    code = (
        "import sys, environment; environment.enter = lambda *extras: None\n"
        f"sys.argv = ['site', '--output', {str(output)!r}]\n"
        f"exec(compile(open({str(ROOT / 'scripts' / 'site')!r}).read(), 'site', 'exec'))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "scripts", check=True, timeout=300)
    return output


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yields the address of a server for the files of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_every_page_is_there_and_every_link_leads_somewhere(site: Path) -> None:
    parsed = {path.name: Links(path.read_text()) for path in site.glob("*.html")}
    assert len(parsed) == 1 + sum(map(len, PAGES.values()))  # and 404.html
    del parsed["404.html"]  # a server shows it in every folder, so its links begin with a slash
    for name, page_links in parsed.items():
        for link in page_links.links:
            if re.match(r"(https?|mailto):", link):
                continue
            path, _, anchor = link.partition("#")
            target = parsed.get(path or name)
            assert target is not None or (site / path).exists(), (name, link)
            if target is not None and anchor:
                assert anchor in target.anchors, (name, link)


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    for path in site.glob("*.html"):
        for link in Links(path.read_text()).fetched:
            assert not re.match(r"(https?:)?//", link), (path.name, link)


def test_pages_fit_a_phone_and_a_desk(site: Path) -> None:
    program = browser()
    names = sorted(p.name for p in site.glob("*.html") if p.name != "404.html")
    text = _HARNESS.replace("PAGES", json.dumps(names)).replace("WIDTHS", json.dumps(WIDTHS))
    harness = site / "harness.html"
    harness.write_text(text)
    folder = f"--user-data-dir={site.parent / 'profile'}"
    with served(site) as address:
        result = finished(program, *_FLAGS, folder, f"{address}/harness.html", seconds=240)
    harness.unlink()
    match = re.search(r'<pre id="result">(.+?)</pre>', result.stdout)
    assert match, result.stderr[-2000:]
    rows = json.loads(match[1])
    assert len(rows) == len(names) * len(WIDTHS)
    assert [row for row in rows if row[2] > row[1]] == []
    assert all(row[3] for row in rows)
    told = [line for line in result.stderr.splitlines() if "CONSOLE" in line and "rror" in line]
    assert told == []


def test_every_message_of_the_tests_is_on_the_page() -> None:
    folder = ROOT / "tests" / "errors" / "messages"
    text = page(messages(folder))
    for path in folder.glob("*.txt"):
        headline = re.search(r"^error: (.+)$", path.read_text(), re.MULTILINE)
        assert headline is None or headline[1] in text.replace("\\", ""), path.name


def test_broken_links_are_errors(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for group in PAGES.values():
        for entry in group:
            source = root / entry.source
            if (ROOT / entry.source).exists():
                source.parent.mkdir(parents=True, exist_ok=True)
                source.write_text("# Title\n")
    (root / "tests" / "errors" / "messages").mkdir(parents=True)
    guide = "".join(
        f"## {section}\n"
        for group in PAGES.values()
        for entry in group
        for section in entry.sections
    )
    (root / "GUIDE.md").write_text(guide)
    assemble(root, tmp_path / "good")
    for number, link in enumerate(("other.md", "GUIDE.md#nothing", "../../x", "#nowhere")):
        (root / "SECURITY.md").write_text(f"# Security\n[a]({link})\n")
        with pytest.raises(BrokenLinkError, match=r"SECURITY\.md"):
            assemble(root, tmp_path / f"bad{number}")
    (root / "SECURITY.md").write_text("# Security\n`[a](nothing)`\n")
    assemble(root, tmp_path / "code")
    (root / "GUIDE.md").write_text(f"{guide}## More\n")
    with pytest.raises(ValueError, match="More"):
        assemble(root, tmp_path / "lost")


def test_sections_end_at_the_next_heading_outside_of_fences() -> None:
    text = "# T\n\n## A\n\n```sh\n## no heading\n```\n\n## B\nb\n"
    assert guide_sections(text) == {"A": "## A\n\n```sh\n## no heading\n```\n\n", "B": "## B\nb\n"}
