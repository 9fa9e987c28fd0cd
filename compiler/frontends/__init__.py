"""Importers: models of other frameworks to graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx
from tcc.frontends.onnx_import import import_model
from tcc.frontends.onnx_reader import read_model
from tcc.ir.graph import Graph

__all__ = ["load_model"]


def load_model(
    model: str | os.PathLike[str] | onnx.ModelProto,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
) -> Graph:
    """The graph of an ONNX model, given by its path or as a protobuf.

    `inputs` gives inputs their shapes, by name: a size fixes a dimension, a name makes it a symbol.
    Raises `UserError` where the model cannot be read or used; every unsupported operator is named.
    """
    return import_model(read_model(model), inputs)
