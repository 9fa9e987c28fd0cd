"""Definitions of C files, cut at their ends though comments look like code."""

import subprocess
from pathlib import Path

import pytest
from tcc.runtime.c_definitions import needed

COMMENTS = {
    "before": "/* Adds two numbers;\n   the sum may be large;\n */\n",
    "braces": "/* Opens {\n   and ends with };\n */\n",
    "line": "// Adds two numbers;\n",
}
BEHIND = "/* the first;\n   and a second line; */"


@pytest.mark.parametrize("comment", COMMENTS.values(), ids=COMMENTS)
def test_a_comment_that_ends_as_code_ends_no_definition(comment: str, tmp_path: Path) -> None:
    support = tmp_path / "support.h"
    support.write_text(
        f"enum color {{ RED, GREEN }};  {BEHIND}\n"
        f"static int twice(int a) {{ return 2 * a; }}  {BEHIND}\n"
        f"{comment}static int sum(int a, int b)\n{{\n    return twice(a) + b + GREEN;\n}}\n"
    )
    user = "int main(void) { return sum(3, 4) - 11; }"
    program = tmp_path / "main.c"
    program.write_text("\n".join((*needed(user, support), user)))
    subprocess.run(["cc", "-Wall", "-Werror", "-o", tmp_path / "main", program], check=True)
    subprocess.run([tmp_path / "main"], check=True)
