"""The worker of onnxruntime-genai: runs the folder that its builder writes for a GGUF file."""

import json
from collections.abc import Sequence

import numpy as np
import onnxruntime_genai
from protocol import serve

CAPACITY = 2048


class OrtText:
    """A generator, whose cache is cut back to its beginning for each new text."""

    def __init__(self, path: str, precision: str, threads: int) -> None:
        """Loads the model; the folder has its precision."""
        config = onnxruntime_genai.Config(path)
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        model = onnxruntime_genai.Model(config)
        settings = onnxruntime_genai.GeneratorParams(model)
        settings.set_search_options(max_length=CAPACITY, do_sample=False)
        self._generator = onnxruntime_genai.Generator(model, settings)

    def clear(self) -> None:
        self._generator.rewind_to(0)

    def append(self, tokens: Sequence[int]) -> int:
        self._generator.append_tokens(np.asarray([tokens], np.int32))
        return int(self._generator.get_logits()[0, -1].argmax())


if __name__ == "__main__":
    serve(OrtText)
