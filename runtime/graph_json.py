"""Graphs as JSON for Model Explorer, and times of their nodes as its node data.

Source of the formats: graph_builder.py and node_data_builder.py of google-ai-edge/model-explorer
0.1.34. A file of node data is loaded beside the graph: "Add per-node data" in its pane.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import networkx
from tcc.runtime.graph_measures import critical_path, step_seconds
from tcc.runtime.graph_text import facts, split_location, step_label
from tcc.runtime.units import duration

_CRITICAL = "#ff725c"
_GRADIENT = (("#ffffff", 0.0), ("#efb118", 0.5), ("#ff725c", 1.0))


def model_explorer_text(graph: networkx.DiGraph) -> str:
    """Returns a graph as the text of a collection of one graph.

    A node is a step, or a buffer that no step writes. Other buffers are the outputs of steps. An
    overlay shows the critical path.
    """
    nodes = [_node(graph, node) for node in graph if _is_shown(graph, node)]
    path = critical_path(graph)
    summary = {
        "model": graph.graph["name"],
        "target": graph.graph["target"],
        "critical path": f"{duration(path.seconds)} of {duration(path.all_seconds)} in steps",
    }
    if "peak_bytes" in graph.graph:
        step, size = graph.graph["peak_step"], graph.graph["peak_bytes"]
        summary["peak of memory"] = f"{size:,} bytes of the arena in step {step}"
    record = {
        "id": graph.graph["name"],
        "nodes": nodes,
        "groupNodeAttributes": {"": summary},
        "tasksData": {"edgeOverlaysDataListLeftPane": [_overlay(path.nodes)]},
    }
    return json.dumps({"label": graph.graph["name"], "graphs": [record]})


def node_data_text(graph: networkx.DiGraph) -> str:
    """Returns the microseconds of each step as node data: measured where they are, else predicted.

    A step without a time has no entry.
    """
    timed = [
        node for node, data in graph.nodes(data=True) if "measured" in data or "predicted" in data
    ]
    results = {node: {"value": round(step_seconds(graph, node) * 1e6, 3)} for node in timed}
    gradient = [{"stop": stop, "bgColor": shade} for shade, stop in _GRADIENT]
    record = {graph.graph["name"]: {"results": results, "gradient": gradient}}
    return json.dumps(record)


def _is_shown(graph: networkx.DiGraph, node: str) -> bool:
    return graph.nodes[node]["kind"] != "buffer" or not graph.in_degree(node)


def _node(graph: networkx.DiGraph, node: str) -> dict[str, Any]:
    data, scopes = graph.nodes[node], tuple[str, ...]()
    if data["kind"] == "buffer":
        scopes, label = (data["place"],), data["label"] or node
        outputs = [node]
    else:
        scopes, label = split_location(step_label(data))
        outputs = list(graph.successors(node))
    return {
        "id": node,
        "label": label,
        # a semicolon separates namespaces
        "namespace": "/".join(scope.replace(";", ",") for scope in scopes),
        "attrs": [_pair(name, text) for name, text in facts(data)],
        "incomingEdges": list(_edges(graph, node)),
        "outputsMetadata": [
            {"id": str(number), "attrs": [_pair(*row) for row in _value_facts(graph, output)]}
            for number, output in enumerate(outputs)
            if graph.nodes[output]["kind"] == "buffer"
        ],
    }


def _pair(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}


def _value_facts(graph: networkx.DiGraph, node: str) -> Iterator[tuple[str, str]]:
    yield "tensor_name", node
    yield from facts(graph.nodes[node])


def _edges(graph: networkx.DiGraph, node: str) -> Iterator[dict[str, str]]:
    """Yields an edge for each value that a step reads, from the step that wrote it."""
    for value in graph.predecessors(node):
        for argument in graph.edges[value, node]["arguments"] or ("control",):
            source, output = value, 0
            if not _is_shown(graph, value):
                (source,) = graph.predecessors(value)
                output = list(graph.successors(source)).index(value)
            yield {
                "sourceNodeId": source,
                "sourceNodeOutputId": str(output),
                "targetNodeInputId": str(argument),
            }


def _overlay(path: tuple[str, ...]) -> dict[str, Any]:
    edges = [{"sourceNodeId": source, "targetNodeId": target} for source, target in pairwise(path)]
    overlay = {
        "name": "critical path", "edgeColor": _CRITICAL, "edgeWidth": 3, "edges": edges,
    }  # fmt: skip
    return {"name": "critical path", "type": "edge_overlays", "overlays": [overlay]}
