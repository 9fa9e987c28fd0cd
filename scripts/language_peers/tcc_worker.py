"""The worker of tcc: runs an artifact that was compiled from a GGUF file."""

from collections.abc import Sequence

import numpy as np
from protocol import serve
from tcc.artifact import load

CAPACITY = 2048


class TccText:
    """The tokens of one text, as the keys and values in the model's caches."""

    def __init__(self, path: str, precision: str, threads: int) -> None:
        """Loads the artifact; the artifact has its precision."""
        self._module = load(path, threads)
        self._caches = {
            port.name: np.zeros((CAPACITY, *port.shape[1:]), np.float32)
            for port in self._module.inputs
            if port.name.startswith("cache.")
        }
        self._length = 0

    def clear(self) -> None:
        self._length = 0

    def append(self, tokens: Sequence[int]) -> int:
        end = self._length + len(tokens)
        inputs = {name: cache[:end] for name, cache in self._caches.items()}
        inputs |= {"tokens": np.asarray(tokens, np.int64), "rows": np.array([-1])}
        logits = self._module.run(inputs)["logits"]
        self._length = end
        return int(logits[-1].argmax())


if __name__ == "__main__":
    serve(TccText)
