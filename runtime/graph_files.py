"""Writes graphs as files: pictures (.svg), for Model Explorer (.json), for Netron (.onnx)."""

from __future__ import annotations

import os
from pathlib import Path

import networkx
from tcc.runtime.graph_json import model_explorer_text, node_data_text
from tcc.runtime.graph_onnx import onnx_bytes
from tcc.runtime.graph_svg import svg_text
from tcc.runtime.reports import InputError
from tcc.runtime.whole_files import write_all

SUFFIXES = (".svg", ".json", ".onnx")


def check_suffix(path: Path) -> None:
    """Raises InputError unless the suffix of `path` names a format of graphs."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            "a graph has no such format",
            where=str(path),
            why=f"the suffix is '{path.suffix}'",
            hint=f"name a file that ends in {', '.join(SUFFIXES)}",
        )


def save_graph(graph: networkx.DiGraph, path: str | os.PathLike[str]) -> list[Path]:
    """Writes a graph that `tcc.graph` returned, in the format that the suffix names.

    Beside NAME.json, NAME.times.json has the times of steps as node data. Returns the paths of the
    files. Raises InputError for another suffix, and OSError if a file cannot be written; then all
    files are as before.
    """
    path = Path(path)
    check_suffix(path)
    match path.suffix.lower():
        case ".svg":
            contents = {path: svg_text(graph).encode()}
        case ".json":
            contents = {
                path: model_explorer_text(graph).encode(),
                path.with_suffix(".times.json"): node_data_text(graph).encode(),
            }
        case _:
            contents = {path: onnx_bytes(graph)}
    write_all(contents)
    return list(contents)
