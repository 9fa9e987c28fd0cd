"""Definitions are read whole from C files, whatever their comments contain."""

from __future__ import annotations

from pathlib import Path

import pytest
from tcc.runtime import c_definitions

ENDS = ("a; b", "one ends here;", "so does a block }", "#define A 1", "int x = 3; // or 4;", "")


@pytest.mark.parametrize("end", ENDS)
def test_a_comment_of_several_lines_ends_no_definition(end: str, tmp_path: Path) -> None:
    support = tmp_path / "support.c"
    comment = f"/* Doubles x.\n * {end}\n * It never fails. */"
    function = "static int tcc_doubled(int x) {\n    return 2 * x;\n}"
    support.write_text(f"{comment}\n{function}\n\nint tcc_other(void);\n")
    assert c_definitions.needed("int y = tcc_doubled(4);", support) == [f"{comment}\n{function}"]
