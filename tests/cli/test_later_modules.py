"""Commands import some modules only when they first use them."""

import ast
from importlib import import_module
from pathlib import Path

from tcc.cli import later_modules


def test_type_checkers_and_commands_see_the_same_modules() -> None:
    tree = ast.parse(Path(later_modules.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    typed = {
        f"{node.module}.{alias.name}"
        for node in imports
        if node.module not in ("typing", "tcc.later")
        for alias in node.names
    }
    listed = later_modules._MODULES.split()
    assert sorted(typed) == sorted(listed)
    assert len({name.rpartition(".")[2] for name in listed}) == len(listed)
    for name in listed:
        assert import_module(name).__name__ == name
