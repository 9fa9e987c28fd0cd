"""The model that a reference runs where the model draws random numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcc.cli.peers.peer import SEED
from tcc.frontends.onnx.drawn import random_nodes, write_drawn
from tcc.temporary import temporary_folder


@contextmanager
def drawn_model(model: Path) -> Iterator[tuple[Path, bool]]:
    """The ONNX file at `model`, its random nodes giving the draws of `SEED`, and False; itself and
    True where only tcc's own evaluator takes these."""
    if not random_nodes(model):
        yield model, False
        return
    with temporary_folder() as folder:
        drawn = folder / "drawn.onnx"
        fed = write_drawn(model, drawn, SEED)
        yield (drawn if fed else model), not fed
