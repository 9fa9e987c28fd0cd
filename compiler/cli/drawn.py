"""Replaces a model's random nodes by constants, so that a reference gets the artifact's numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.cli.peers.peer import SEED
from tcc.frontends import load_model
from tcc.frontends.onnx.drawn import random_nodes, write_drawn
from tcc.ir.graph import walk_nodes
from tcc.temporary import temporary_folder


@contextmanager
def drawn_model(model: Path) -> Iterator[tuple[Path, bool]]:
    """Yields a model that a reference can run, and True if only tcc's own evaluator can run it.

    Constants replace the model's random nodes: the numbers that an artifact draws with the seed
    `SEED`. If they cannot be replaced, as in a .pt2 archive, the model itself is yielded with True.
    A model without random nodes is yielded as it is, with False.
    """
    if model.suffix == ".pt2":
        yield model, any(node.op.name == "random_bits" for node in walk_nodes(load_model(model)))
        return
    if not random_nodes(model):
        yield model, False
        return
    with temporary_folder() as folder:
        drawn = folder / "drawn.onnx"
        fed = write_drawn(model, drawn, SEED)
        yield (drawn if fed else model), not fed
