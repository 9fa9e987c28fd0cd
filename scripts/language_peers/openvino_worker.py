"""The worker of OpenVINO: runs the model into which OpenVINO GenAI converts a GGUF file.

With the argument `convert GGUF` it writes this model, openvino_model.xml, beside the file.
"""

import sys
from collections.abc import Sequence

import numpy as np
import openvino
from protocol import serve


class OpenvinoText:
    """A compiled model with its state; OpenVINO chooses the types that it is not told."""

    def __init__(self, path: str, precision: str, threads: int) -> None:
        """Compiles the model; f32 and bf16 compute in that type, integers in OpenVINO's default."""
        hint = {"INFERENCE_PRECISION_HINT": precision} if precision in ("f32", "bf16") else {}
        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, **hint}
        model = openvino.Core().compile_model(path, "CPU", settings)
        self._names = {name for port in model.inputs for name in port.names}
        self._request = model.create_infer_request()
        self._length = 0

    def clear(self) -> None:
        self._request.reset_state()
        self._length = 0

    def append(self, tokens: Sequence[int]) -> int:
        end = self._length + len(tokens)
        inputs = {
            "input_ids": np.asarray([tokens], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(self._length, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.infer({k: v for k, v in inputs.items() if k in self._names})
        self._length = end
        return int(self._request.get_output_tensor(0).data[0, -1].argmax())


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        import openvino_genai  # the worker does not need it, and it takes memory

        openvino_genai.LLMPipeline(sys.argv[2], "CPU", enable_save_ov_model=True)
    else:
        serve(OpenvinoText)
