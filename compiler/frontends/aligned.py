"""Iterables that belong together item by item."""

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    aligned = zip
else:
    aligned = partial(zip, strict=True)  # raises ValueError unless all have equal lengths
