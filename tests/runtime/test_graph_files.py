"""Files of graphs (pictures, Model Explorer's JSON, ONNX) are right for any names and any size."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import onnx
import pytest
from tcc.runtime.graph_boxes import MOST_BOXES, boxes
from tcc.runtime.graph_files import save_graph
from tcc.runtime.graph_layout import LONGEST, MOST_COLUMNS, layout
from tcc.runtime.graph_measures import critical_path
from tcc.runtime.graph_svg import svg_text
from tcc.runtime.graph_text import split_location
from tcc.runtime.reports import InputError
from test_profile import HOSTILE
from test_profile_page import in_browser

SVG = "{http://www.w3.org/2000/svg}"


def chain(count: int, location: str = "/model/layers.{0}/op{1}/MatMul (MatMul)") -> Any:
    """Returns a graph of `count` steps: each reads the two previous steps, and the first an input
    and a weight."""
    graph = networkx.DiGraph(name="chain", target="cpu", threads=2, peak_step=1, peak_bytes=8192)
    graph.add_node("b0", kind="buffer", buffer=0, version=1, label="x", place="input", bytes=64)
    graph.nodes["b0"].update(dtype="f32", shape=[None, 4])
    graph.add_node("b1", kind="buffer", buffer=1, version=1, label="w", place="weight", bytes=32)
    for step in range(count):
        graph.add_node(
            f"s{step}", kind="kernel", step=step, name=f"kernel {step % 7}", region="", flops=100,
            location=location.format(step // 100, step % 100), launches=1, bytes=64,
            predicted=1e-6 * (1 + step % 5), limit=("compute", "memory", "")[step % 3],
        )  # fmt: skip
        value, last = f"b{step + 2}", step == count - 1
        graph.add_node(
            value, kind="buffer", buffer=step + 2, version=1, label=f"v{step}", bytes=4096,
            place="output" if last else "arena",
        )  # fmt: skip
        graph.add_edge(f"s{step}", value, kind="write", arguments=(2,), bytes=4096)
        sources = [f"b{step + 1 - back}" for back in range(2) if step > back] or ["b0", "b1"]
        for argument, source in enumerate(sources):
            graph.add_edge(source, f"s{step}", kind="read", arguments=(argument,), bytes=64)
    return graph


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in xml.fromstring(svg).iter(f"{SVG}text")]


# ---- the picture ---------------------------------------------------------------------------------


def test_a_picture_has_a_box_for_each_step() -> None:
    labels = texts(svg_text(chain(20)))
    assert Counter(labels)["MatMul (MatMul)"] == 20
    assert "model/layers.0/op7" in labels
    assert "x" in labels
    assert any("critical path (in orange)" in text for text in labels)
    assert any("20 steps" in text for text in labels)
    assert {"compute", "memory", "not known"} <= set(labels)


@pytest.mark.parametrize("count", [MOST_BOXES, MOST_BOXES + 1, 10_000])
def test_large_graphs_are_drawn_in_groups(count: int) -> None:
    drawn = boxes(chain(count))
    boxes_drawn = [data["box"] for _, data in drawn.nodes(data=True) if data["box"].kind != "port"]
    assert len(boxes_drawn) <= MOST_BOXES
    assert networkx.is_directed_acyclic_graph(drawn)
    assert sum(box.seconds for box in boxes_drawn) == pytest.approx(
        sum(1e-6 * (1 + step % 5) for step in range(count))
    )
    svg = svg_text(chain(count))
    assert len(svg) < 1 << 20
    assert xml.fromstring(svg).tag == f"{SVG}svg"


def test_groups_without_scopes_are_of_equal_length() -> None:
    drawn = boxes(chain(1000, "node{0}_{1}"))
    names = [data["box"].name for _, data in drawn.nodes(data=True) if data["box"].kind == "group"]
    assert len(names) == 250
    assert all(name.endswith(": 4 steps") for name in names)


def test_many_inputs_share_a_box() -> None:
    graph = chain(3)
    for number in range(100, 130):
        graph.add_node(
            f"b{number}", kind="buffer", buffer=number, version=1, label=f"in{number}",
            place="input",
        )  # fmt: skip
        graph.add_edge(f"b{number}", "s2", kind="read", arguments=(3,))
    assert "31 inputs" in texts(svg_text(graph))


@pytest.mark.parametrize("seed", range(20))
def test_boxes_do_not_overlap_and_arrows_go_down(seed: int) -> None:
    draw = np.random.default_rng(seed)
    graph = networkx.DiGraph()
    for node in range(60):
        graph.add_node(node)
        for source in range(node):
            if draw.random() < 0.04:
                graph.add_edge(source, node, weight=float(draw.choice([0.25, 1, 8])))
    width = 100.0
    places = layout(graph, width)
    for source, target in graph.edges:
        assert places.layer[source] < places.layer[target]
        bends = places.bends.get((source, target), [])
        span = places.layer[target] - places.layer[source]
        assert ((source, target) in places.long) == (span > LONGEST)
        assert len(bends) == (0 if span > LONGEST else span - 1)
    for row in range(places.layers):
        members = [node for node in graph if places.layer[node] == row]
        read = [node for node in members if graph.in_degree(node)]
        assert len(read) <= MOST_COLUMNS
        for a, b in combinations(members, 2):
            assert abs(places.x[a] - places.x[b]) >= width - 1e-6


@pytest.mark.parametrize("name", [HOSTILE, "a/b;c/<&>\"'", "\ud800", "β" * 300, "", "(", "/" * 50])
def test_names_of_any_kind_are_text(name: str, tmp_path: Path) -> None:
    graph = chain(4, name.replace("{", "{{").replace("}", "}}"))
    graph.graph["name"] = graph.nodes["b0"]["label"] = graph.nodes["b5"]["label"] = name
    root = xml.fromstring(svg_text(graph))
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "style", "rect", "text", "g", "path")
    }
    graph_name = name.encode("utf-8", "replace").decode()
    graph.graph["name"] = graph_name
    for data in graph.nodes.values():
        for key in ("label", "location"):
            if key in data:
                data[key] = data[key].encode("utf-8", "replace").decode()
    for path in (*save_graph(graph, tmp_path / "g.json"), *save_graph(graph, tmp_path / "g.svg")):
        assert path.stat().st_size
    (file,) = save_graph(graph, tmp_path / "g.onnx")
    onnx.checker.check_model(str(file), full_check=True)


def test_a_browser_shows_the_picture(tmp_path: Path) -> None:
    graph = chain(30)
    graph.nodes["s3"]["location"] = HOSTILE
    (file,) = save_graph(graph, tmp_path / "g.svg")
    dom = in_browser(file, tmp_path)
    assert dom.count("<path") == boxes(graph).number_of_edges()
    assert "<b>'" not in dom


def test_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    for suffix in (".svg", ".json", ".onnx"):
        first = [p.read_bytes() for p in save_graph(chain(50), tmp_path / f"a{suffix}")]
        second = [p.read_bytes() for p in save_graph(chain(50), tmp_path / f"b{suffix}")]
        assert first == second


def test_no_steps_give_files_too(tmp_path: Path) -> None:
    graph = networkx.DiGraph(name="empty", target="cpu", threads=1)
    for suffix in (".svg", ".json", ".onnx"):
        assert save_graph(graph, tmp_path / f"g{suffix}")


@pytest.mark.parametrize(
    ("location", "scopes", "name"),
    [
        ("/block/conv/Conv (Conv) (+1)", ("block", "conv"), "Conv (Conv) (+1)"),
        ("Conv_1 (Conv)", (), "Conv_1 (Conv)"),
        ("a/b", ("a",), "b"),
        ("a/b (Conv) (+1) (direct, where a tile fails)", ("a",),
         "b (Conv) (+1) (direct, where a tile fails)"),
        ("", (), ""),
        ("///", (), "///"),
    ],
)  # fmt: skip
def test_locations_have_scopes(location: str, scopes: tuple[str, ...], name: str) -> None:
    assert split_location(location) == (scopes, name)


# ---- Model Explorer ------------------------------------------------------------------------------


def test_the_json_has_the_fields_of_model_explorer(tmp_path: Path) -> None:
    """graph_builder.py and node_data_builder.py of version 0.1.34 use the same names."""
    graph = chain(12)
    graph_file, times_file = save_graph(graph, tmp_path / "g.json")
    collection = json.loads(graph_file.read_text())
    assert set(collection) == {"label", "graphs"}
    (record,) = collection["graphs"]
    assert set(record) == {"id", "nodes", "groupNodeAttributes", "tasksData"}
    ids = {node["id"] for node in record["nodes"]}
    outputs = {node["id"]: {o["id"] for o in node["outputsMetadata"]} for node in record["nodes"]}
    for node in record["nodes"]:
        assert set(node) == {
            "id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata",
        }  # fmt: skip
        for pair in node["attrs"]:
            assert type(pair["key"]) is type(pair["value"]) is str
        for edge in node["incomingEdges"]:
            assert edge["sourceNodeId"] in ids
            assert edge["sourceNodeOutputId"] in outputs[edge["sourceNodeId"]]
    assert ids == {"b0", "b1", *(f"s{step}" for step in range(12))}
    by_id = {node["id"]: node for node in record["nodes"]}
    assert (by_id["s3"]["namespace"], by_id["s3"]["label"]) == (
        "model/layers.0/op3", "MatMul (MatMul)",
    )  # fmt: skip
    sources = [edge["sourceNodeId"] for edge in by_id["s3"]["incomingEdges"]]
    assert sources == ["s2", "s1"]
    (overlays,) = record["tasksData"]["edgeOverlaysDataListLeftPane"]
    assert overlays["type"] == "edge_overlays"
    (overlay,) = overlays["overlays"]
    path = [(edge["sourceNodeId"], edge["targetNodeId"]) for edge in overlay["edges"]]
    assert path == list(pairwise(critical_path(graph).nodes))
    times = json.loads(times_file.read_text())
    assert set(times) == {record["id"]}
    results = times[record["id"]]["results"]
    assert results == {f"s{step}": {"value": float(1 + step % 5)} for step in range(12)}
    assert [stop["stop"] for stop in times[record["id"]]["gradient"]] == [0.0, 0.5, 1.0]


def test_a_json_of_10_000_steps(tmp_path: Path) -> None:
    graph_file, _ = save_graph(chain(10_000), tmp_path / "g.json")
    assert len(json.loads(graph_file.read_text())["graphs"][0]["nodes"]) == 10_002
    assert graph_file.stat().st_size < 32 << 20


# ---- ONNX ----------------------------------------------------------------------------------------


def test_the_onnx_file_has_the_kernels_as_functions(tmp_path: Path) -> None:
    (file,) = save_graph(chain(12), tmp_path / "g.onnx")
    onnx.checker.check_model(str(file), full_check=True)
    model = onnx.load(file)
    assert [function.name for function in model.functions] == [
        f"MatMul_kernel_{n}" for n in range(7)
    ]
    assert [node.op_type for function in model.functions for node in function.node] == (
        ["MatMul"] * 7
    )
    assert [node.op_type for node in model.graph.node] == [
        f"MatMul_kernel_{n % 7}" for n in range(12)
    ]
    first = model.graph.node[0]
    assert list(first.input) == ["b0 x", ""]  # the metadata names the weight
    notes = {entry.key: entry.value for entry in first.metadata_props}
    assert notes["weights"] == "w (32 bytes)"
    assert notes["predicted"] == "1 us"
    assert [port.name for port in model.graph.input] == ["b0 x"]
    assert [port.name for port in model.graph.output] == ["b13 v11"]
    (value,) = [v for v in model.graph.value_info if v.name == "b5 v3"]
    assert value.type.tensor_type.shape.dim[0].dim_value == 4096
    for node in model.graph.node:
        function = next(f for f in model.functions if f.name == node.op_type)
        assert len(node.input) <= len(function.input)
        assert len(node.output) == len(function.output)


# ---- files ---------------------------------------------------------------------------------------


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.svg, \.json, \.onnx"):
        save_graph(chain(2), tmp_path / "g.png")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two files does not fit: neither is written, and an older file is unchanged."""
    (tmp_path / "g.json").write_text("old")
    write, count = Path.write_bytes, []

    def full(self: Path, data: bytes) -> int:
        count.append(self)
        if len(count) == 2:
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        save_graph(chain(2), tmp_path / "g.json")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("g.json", "old")]
