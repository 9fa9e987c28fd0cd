"""Pairs the items of sequences that must have one length.

zip_equal("ab", (1, 2))      ("a", 1), ("b", 2)
"""

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    zip_equal = zip  # so that the types of the items are known
else:
    # Raises ValueError if the sequences differ in length.
    zip_equal = partial(zip, strict=True)
