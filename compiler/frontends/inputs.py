"""Checks the shapes that the user gives for a model's inputs."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from tcc.errors import UserError

Shapes: TypeAlias = Mapping[str, Sequence[int | str]]


def check_names(shapes: Shapes, names: Collection[str], model: str) -> None:
    """Raises `UserError` for a shape whose name is not among the `names` of the inputs.

    `model` is what the message calls the model.
    """
    for name in sorted(set(shapes) - set(names)):
        raise UserError(
            f"the {model} has no input '{name}'",
            why=f"its inputs are {', '.join(names) or 'none'}",
        )


def check_rank(name: str, shape: Sequence[int | str], rank: int, declares: str) -> None:
    """Raises `UserError` unless the shape of input `name` has `rank` dimensions.

    `declares` begins the sentence that ends with the rank, as in "model declares".
    """
    if len(shape) != rank:
        raise UserError(
            f"the shape given for input '{name}' has the wrong rank",
            why=f"{len(shape)} dimensions given, the {declares} {rank}",
        )


def contradiction(name: str, size: int | str, declares: str, declared_size: int | str) -> UserError:
    """Returns the error to raise where a size of input `name` is not the declared one."""
    return UserError(
        f"the shape given for input '{name}' contradicts the {declares.split()[0]}",
        why=f"{size} given, the {declares} {declared_size}",
    )
