"""Sequences of different lengths are never paired."""

import pytest
from tcc.zipped import zip_equal


def test_pairs_are_those_of_zip() -> None:
    assert [*zip_equal("ab", (1, 2), [3, 4])] == [("a", 1, 3), ("b", 2, 4)]


@pytest.mark.parametrize("sequences", [("a", ()), ("a", (1, 2)), ((), "ab", "ab")])
def test_a_shorter_sequence_is_an_error(sequences: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="argument 2 is"):
        list(zip_equal(*sequences))
