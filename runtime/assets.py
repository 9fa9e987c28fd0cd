"""The files that an artifact holds beside its model, such as a tokenizer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tcc.runtime import abi


class Assets(Mapping[str, bytes]):
    """A mapping from the names of an artifact's assets to their bytes.

    The bytes are read at the first access to a name, and compared with their hash. The access
    raises the module's error for an asset that is damaged.
    """

    def __init__(
        self,
        api: abi.Api,
        manifest: Mapping[str, Any],
        error: Callable[..., Exception],
        path: Path,
    ) -> None:
        # No reference to the module: it would live on until cycles are collected.
        self._api, self._error, self._path = api, error, path
        # An older artifact lacks the function, and has no assets.
        self._names = _names(manifest) if api.model_asset else []
        self._read: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._read:
            if name not in self._names:
                listed = ", ".join(self._names)
                raise KeyError(f"the artifact has no asset {name}; it has: {listed or 'none'}")
            data, size = ctypes.c_void_p(), ctypes.c_size_t()
            if self._api.model_asset(name.encode(), ctypes.byref(data), ctypes.byref(size)):
                message = self._api.last_error().decode(errors="replace")
                raise self._error(message, where=str(self._path))
            self._read[name] = ctypes.string_at(data, size.value) if size.value else b""
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<assets: {', '.join(self._names) or 'none'}>"


def _names(manifest: Mapping[str, Any]) -> list[str]:
    """Returns the names that a manifest lists; entries of another form have none."""
    entries = manifest.get("assets")
    if not isinstance(entries, list):
        return []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]
