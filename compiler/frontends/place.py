"""The part of the model under import, for the location of new nodes and for errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tcc.errors import UserError

PLACE: ContextVar[str] = ContextVar("place", default="")


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Sets `PLACE`; a `UserError` that names no place gets this one."""
    before = PLACE.set(where)
    try:
        yield
    except UserError as error:
        error.where = error.where or where
        raise
    finally:
        PLACE.reset(before)
