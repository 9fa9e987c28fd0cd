"""The page of a profile is one file that needs no network, for all names and sizes of a model."""

from __future__ import annotations

import re
from pathlib import Path

import networkx
import pytest
from tcc.runtime.profile import ModuleProfile
from tcc.runtime.profile_facts import StepFact
from test_profile import HOSTILE, STEPS, TWO_THREADS, facts, made, stamps

from tests.browser import browser
from tests.processes import finished

pytest.importorskip("bokeh")
pytest.importorskip("jinja2")

# Requests and console lines go to stderr; the page's DOM goes to stdout after its scripts have run.
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--timeout=60000",
    "--enable-logging=stderr", "--window-size=1320,1500", "--dump-dom",
)  # fmt: skip


def opened(profile: ModuleProfile, folder: Path) -> str:
    """Returns the DOM of the page in a browser without network; fails on console lines above the
    level of information."""
    page = folder / "page.html"
    profile.save_page(page)
    return in_browser(page, folder)


def in_browser(page: Path, folder: Path) -> str:
    """Returns the DOM of a file in that browser."""
    rules = "--host-resolver-rules=MAP * ~NOTFOUND"
    result = finished(browser(), *_FLAGS, rules, f"--user-data-dir={folder}", page.as_uri())
    assert result.returncode == 0, result.stderr[-2000:]
    told = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert [line for line in told if "[bokeh " not in line or "ERR" in line.upper()] == []
    return result.stdout


def test_a_page_needs_no_network_and_draws_all_charts(tmp_path: Path) -> None:
    dom = opened(made(TWO_THREADS, STEPS), tmp_path)
    assert len(re.findall(r'data-root-id="[^"]+"', dom)) == 4
    assert len(re.findall(r"<tr>", dom)) == 1 + len(STEPS.steps)
    assert "conv_1 (Conv)" in dom
    assert dom.count("bk-Figure") >= 4  # the charts are there, not only their placeholders


def test_hostile_names_are_text(tmp_path: Path) -> None:
    step = StepFact("kernel 0", HOSTILE, 1000, 500, 1e-7, "compute")
    profile = made(TWO_THREADS, facts(step, StepFact(HOSTILE, "")))
    profile.name = HOSTILE
    dom = opened(profile, tmp_path)
    assert "<b>'\"" not in dom
    assert "{{ 7*7 }}" in dom
    assert dom.count("bk-Figure") >= 3


def test_a_page_of_a_model_without_steps(tmp_path: Path) -> None:
    run = stamps((0, 1, 0, 1, 1))
    run = type(run)(run.stamps[-1:], 0)
    assert opened(made(run, facts()), tmp_path).count("bk-Figure") >= 3


def test_a_page_of_20_000_steps(tmp_path: Path) -> None:
    run = stamps(*((10 * n, 10 * n + 8, n, 1 + n % 2, n + 1) for n in range(20_000)))
    step = StepFact("kernel 0", "node (Relu)", 1000, 500, 1e-9, "memory")
    profile = made(run, facts(*[step] * 20_000, live=(64,) * 20_000))
    profile.save_page(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 16 << 20


def test_a_page_names_the_slowest_step_and_its_limit(tmp_path: Path) -> None:
    made(TWO_THREADS, STEPS).save_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    head = text[text.index("Slowest step") : text.index('class="tiles"')]
    assert "conv_1 (Conv)" in head
    assert "limited by compute" in head


def test_a_page_shows_the_critical_path_and_the_buffers_of_the_peak(tmp_path: Path) -> None:
    """The profile has two chains of steps; names with quotes and HTML are shown as text."""
    profile = made(TWO_THREADS, STEPS)
    graph = networkx.DiGraph(name="m", target="cpu", threads=2)
    for step in profile.steps:
        graph.add_node(
            f"s{step.number}", kind="kernel", step=step.number, name=step.fact.name,
            location=HOSTILE if step.number else step.fact.location, measured=step.seconds,
        )  # fmt: skip
    for number, (size, label) in enumerate(((3 << 20, HOSTILE), (1 << 20, "scores"))):
        graph.add_node(
            f"b{number}", kind="buffer", buffer=number, version=1, label=label, place="arena",
            bytes=size, first=0, last=1,
        )  # fmt: skip
        graph.add_edge(f"s{number}", f"b{number}", kind="write", arguments=(0,))
    profile.graph = graph
    dom = opened(profile, tmp_path)
    path = dom[dom.index("Critical path: ") : dom.index("Most memory: ")]
    assert "conv_1 (Conv)" in path
    assert "1 step waits" in path
    assert "0.04 us of\n0.3 us" in path  # the other step need not wait
    peak = dom[dom.index("Most memory: ") :]
    assert peak.startswith("Most memory: 4 MiB in step 0")
    rows = re.findall(r"width: ([0-9]+[.][0-9])%", peak)
    assert rows == ["52.5", "17.5"]  # three quarters and one quarter of 70 %
    assert "scores" in peak
    assert "<b>'\"" not in dom


def test_a_page_without_a_graph_says_so(tmp_path: Path) -> None:
    made(TWO_THREADS, STEPS).save_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "The artifact has no graph" in text
    assert "Critical path" not in text
