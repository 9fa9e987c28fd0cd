"""Pictures of plans show the right shapes and texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from xml.etree import ElementTree

import pytest
from tcc.backends.artifact.planner import partition_solver
from tcc.distributed.costs import Cluster, RankRates, one_host
from tcc.distributed.facts import PlanFacts, planned
from tcc.distributed.layers import Crossing, PlanLayer, plan_rows
from tcc.distributed.mesh import Mesh
from tcc.ir.graph import GraphBuilder
from tcc.ir.types import F32, tensor
from tcc.runtime.plan_picture import _Drawing, folded, plan_svg
from tcc.runtime.units import bytes_text

from tests.distributed.networks import NETWORKS, add, weight

RATES = RankRates(operations=1e9, memory_bytes=1e9, link_bytes=1e11, latency=1e-7)
SVG = "{http://www.w3.org/2000/svg}"


def picture(result: PlanFacts) -> str:
    """Returns the picture of a plan."""
    rows = [*map(asdict, plan_rows(result.division))]
    graph = result.division.graph
    return plan_svg(graph.name, result.facts, result.collectives, rows, bytes_text)


def drawn(text: str) -> tuple[ElementTree.Element, Counter[str], list[str]]:
    """Returns the parsed picture, the number of its shapes by class, and its texts."""
    root = ElementTree.fromstring(text)
    shapes = Counter(item.get("class", "") for item in root if item.tag != f"{SVG}text")
    return root, shapes, ["".join(item.itertext()) for item in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("ranks", [2, 4, 32])
@pytest.mark.parametrize("name", ["mlp", "attention", "convnet"])
def test_a_picture_has_each_rank_and_each_collective(name: str, ranks: int) -> None:
    result = planned(NETWORKS[name](), one_host(ranks, RATES), partition_solver(), {})
    text = picture(result)
    again = planned(NETWORKS[name](), one_host(ranks, RATES), partition_solver(), {})
    assert text == picture(again)
    root, shapes, texts = drawn(text)
    names = [str(rank) if ranks == 32 else f"rank {rank}" for rank in range(ranks)]
    assert [item for item in texts if item in names] == names
    kinds = {item["kind"] for item in result.collectives}
    assert kinds
    assert kinds <= {*texts}
    assert shapes["move"] == 1 + ranks * shapes["line"]  # one is in the legend
    assert "prefers-color-scheme:dark" in text
    width, height = (float(root.get(side, "")) for side in ("width", "height"))
    for item in root:
        assert 0 <= float(item.get("x", "0")) < width
        assert 0 <= float(item.get("y", "0")) < height


def test_a_picture_of_a_mesh_shows_the_blocks_of_both_axes() -> None:
    """On four ranks, a value that both axes divide has four blocks, and another value has two."""
    cluster = Cluster(Mesh((2, 2)), (RATES, RATES))
    result = planned(NETWORKS["mlp"](), cluster, partition_solver(), {})
    rows = [*plan_rows(result.division)]
    layers = [row for row in rows if isinstance(row, PlanLayer) and row.kind == "split"]
    assert (0, 1, 2, 3) in [layer.blocks for layer in layers]
    crossings = [row for row in rows if isinstance(row, Crossing)]
    assert {row.groups for row in crossings} <= {((0, 1), (2, 3)), ((0, 2), (1, 3))}
    root, _, texts = drawn(picture(result))
    assert any(" | " in text for text in texts)
    bars = [item for item in root.iter(f"{SVG}rect") if item.get("class") == "split"][:4]
    cells = [item for item in root.iter(f"{SVG}rect") if item.get("class") == "slot"][:4]
    pairs = zip(bars, cells, strict=True)
    offsets = [float(a.get("x", "")) - float(b.get("x", "")) for a, b in pairs]
    assert offsets == sorted(offsets)
    assert len({*offsets}) == max(layers[0].blocks) + 1


def test_equal_layers_become_one_with_a_count() -> None:
    """The model is an MLP of pairs of matmuls: columns, then rows."""
    b = GraphBuilder("deep")
    x = b.input("x", tensor(F32, 16, 64))
    for _ in range(5):
        h = add(b, "relu", add(b, "matmul", x, weight(b, 64, 512)))
        x = add(b, "matmul", h, weight(b, 512, 64))
    division = planned(b.finish((x,)), one_host(2, RATES), partition_solver(), {}).division
    ((sequence, times),) = folded([*map(asdict, plan_rows(division))])
    assert times == 5
    assert [row["nodes"] for row in sequence if "nodes" in row] == [
        ("matmul", "relu"), ("matmul.1",),
    ]  # fmt: skip


def test_rows_before_and_behind_a_repetition_stay() -> None:
    kinds = [*"xabababy"]
    repeats = [*folded([{"kind": kind} for kind in kinds])]
    assert [(len(sequence), times) for sequence, times in repeats] == [(1, 1), (2, 3), (1, 1)]
    assert [row["kind"] for rows, times in repeats for row in [*rows] * times] == kinds


def test_groups_of_ranks_that_overlap_have_lines_of_their_own() -> None:
    drawing = _Drawing(4, bytes_text)
    drawing.repeat([asdict(Crossing("all_reduce", 8, ((0, 2), (1, 3))))], 1)
    drawing.repeat([asdict(Crossing("all_gather", 8, ((0, 1), (2, 3))))], 1)
    root, shapes, _ = drawn(drawing.text("groups"))
    heights = [item.get("cy") for item in root.iter(f"{SVG}circle")]
    assert shapes["line"] == 4
    assert len({*heights[:4]}) == 2
    assert len({*heights[4:]}) == 1


def test_hostile_names_stay_text() -> None:
    drawing = _Drawing(2, bytes_text)
    name = '</text><script>\x1b\x00("1")</script>'
    layer = PlanLayer((name,), ("matmul",), "whole", ("whole",), (0, 0), 0, 0)
    drawing.repeat([asdict(layer)], 1)
    root, _, texts = drawn(drawing.text(name))
    assert not [*root.iter(f"{SVG}script")]
    assert any(text.startswith("</text><script>") for text in texts)
