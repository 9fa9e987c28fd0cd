"""How a module shows itself: as text, and as a table in notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from tcc.runtime.ports import ModulePort
from tcc.runtime.units import bytes_text


class ShownModule:
    """The part of a module that shows it: its ports, and facts of its manifest."""

    inputs: tuple[ModulePort, ...]
    outputs: tuple[ModulePort, ...]
    manifest: dict[str, Any]
    variant: int

    def __repr__(self) -> str:
        ports = ", ".join(f"{p.name}: {p.dtype}{p.text}" for p in self.inputs)
        results = ", ".join(f"{p.name}: {p.dtype}{p.text}" for p in self.outputs)
        return f"Module({ports} -> {results})"

    def _repr_html_(self) -> str:
        """Returns a table of the ports and of the code, for notebooks."""
        ports = [
            (kind, port.name, f"{port.dtype}{port.text}")
            for kind, group in (("input", self.inputs), ("output", self.outputs))
            for port in group
        ]
        rows = (*ports, *(("", name, text) for name, text in self._facts()))
        return html_table(("", "name", "value"), rows)

    def _facts(self) -> Iterator[tuple[str, str]]:
        variant = self.manifest["variants"][self.variant]
        yield "target", str(variant.get("target"))
        yield "precision", str(self.manifest.get("precision", ""))
        yield "kernels", str(variant.get("kernel_count"))
        for name, size in (("weights", variant["weights"]["bytes"]), ("arena", _arena(variant))):
            yield name, size if isinstance(size, str) else bytes_text(size)


def _arena(variant: dict[str, Any]) -> int | str:
    size = variant.get("arena_bytes")
    return "depends on the inputs" if size is None else int(size)


def html_table(heads: tuple[str, ...], rows: Any) -> str:
    """Returns a table of HTML; texts of `heads` and `rows` are escaped."""
    lines = (
        "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
        for tag, table in (("th", (heads,)), ("td", rows))
        for cells in table
    )
    return f"<table>{''.join(lines)}</table>"
