"""The worker of llama.cpp, which reads the GGUF file itself."""

from collections.abc import Sequence

import llama_cpp
import numpy as np
from protocol import serve

CAPACITY = 2048


class LlamaText:
    """A context of llama.cpp; its cache has llama.cpp's default type, f16."""

    def __init__(self, path: str, precision: str, threads: int) -> None:
        """Loads the model; the file has its precision."""
        self._model = llama_cpp.Llama(
            path, n_ctx=CAPACITY, n_batch=512, n_ubatch=512, n_gpu_layers=0, verbose=False,
            n_threads=threads, n_threads_batch=threads,
        )  # fmt: skip

    def clear(self) -> None:
        self._model.reset()

    def append(self, tokens: Sequence[int]) -> int:
        self._model.eval(tokens)
        vocabulary = self._model.n_vocab()
        pointer = llama_cpp.llama_get_logits_ith(self._model.ctx, -1)
        return int(np.ctypeslib.as_array(pointer, shape=(vocabulary,)).argmax())


if __name__ == "__main__":
    serve(LlamaText)
