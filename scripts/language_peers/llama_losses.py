"""Prints the mean loss of llama.cpp on the tokens of a text.

    python llama_losses.py MODEL.gguf TOKENS.json

The cache has llama.cpp's default type, f16.
"""

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

PIECE = 250  # tokens of a run


def main() -> None:
    path, tokens = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    model = llama_cpp.Llama(
        path, n_ctx=len(tokens) + 8, n_batch=512, n_gpu_layers=0, verbose=False, logits_all=True
    )
    for start in range(0, len(tokens), PIECE):
        model.eval(tokens[start : start + PIECE])
    logits = np.array(model.scores[: len(tokens) - 1], np.float64)
    logits -= logits.max(1, keepdims=True)
    shares = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), tokens[1:]]
    print(shares.mean())


if __name__ == "__main__":
    main()
