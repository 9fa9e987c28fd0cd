"""The development tree is linked again only if modules were added or removed, because processes
import from it."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "devtree"


def test_a_tree_that_is_current_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = SourceFileLoader("devtree", str(SCRIPT))
    spec = spec_from_loader("devtree", loader)
    assert spec is not None
    script = module_from_spec(spec)
    loader.exec_module(script)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    for name in ("compiler", *script.SUBPACKAGES):
        (tmp_path / name).mkdir()
    (tmp_path / "compiler" / "first.py").touch()
    tree = tmp_path / "build" / "devtree" / "tcc"
    script.link_sources()
    assert {entry.name for entry in tree.iterdir()} == {"first.py", *script.SUBPACKAGES}
    (tree / "__pycache__").mkdir()  # an import from the tree leaves such a folder
    inode = tree.stat().st_ino
    script.link_sources()
    assert tree.stat().st_ino == inode
    assert (tree / "__pycache__").exists()
    (tmp_path / "compiler" / "first.py").rename(tmp_path / "compiler" / "second.py")
    script.link_sources()
    assert {entry.name for entry in tree.iterdir()} == {"second.py", *script.SUBPACKAGES}
