"""Exports models of models/ as archives of PyTorch, for the peer `inductor` of `scripts/bench`."""

from __future__ import annotations

from pathlib import Path

import torch
from tcc.errors import ToolError

from models.build import recipe
from models.export import module_arguments
from models.inputs import Array, make_inputs
from models.manifest import model_spec


def archive(name: str, folder: Path) -> tuple[Path, dict[str, Array]]:
    """Writes the module of a model as FOLDER/NAME.pt2; returns the path and the model's inputs.

    The inputs have the names that torch gives them. Raises ToolError where torch.export
    refuses the module.
    """
    path = folder / f"{name}.pt2"
    inputs = make_inputs(name, seed=0)
    arguments = module_arguments(inputs)
    try:
        program = torch.export.export(recipe(model_spec(name)).module.eval(), arguments)
    except Exception as error:
        raise ToolError("torch.export refuses the module", where=name, why=str(error)) from error
    torch.export.save(program, path)
    names = program.graph_signature.user_inputs
    return path, dict(zip(names, inputs.values(), strict=True))
