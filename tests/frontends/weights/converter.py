"""GGUF files of tiny models, written by llama.cpp's own converter.

`scripts/language_families` fetches the converter. It runs in a process of its own, because it
brings its own version of the library gguf.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.frontends.weights.tiny import CONFIGS, VOCABULARY, saved, tiny_model

ROOT = Path(__file__).resolve().parents[3]
CONVERTER = ROOT / "build" / "llama.cpp"
_LAYERS = ["sliding_attention"] * 5 + ["full_attention"]
# Fields that replace those of `CONFIGS`. llama.cpp's files have no keys for some of them (the
# windows of Mistral and Qwen 2, other scales of scores). Other fields have the values of the
# trained models (the base and the pattern of Gemma's layers with a window).
_CHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "mistral": {"sliding_window": None},
        "qwen2-yarn": {"use_sliding_window": False},
        "gemma2": {"query_pre_attn_scalar": 12},
        "gemma3": {
            "num_hidden_layers": 6,
            "layer_types": _LAYERS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    }
)
# A program for the converter's process. Tiny models have no vocabulary.
_CONVERT = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
import gguf, torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
folder, path = map(Path, sys.argv[2:])
with torch.inference_mode():
    facts = ModelBase.load_hparams(folder, False)
    kind = get_model_class(get_model_architecture(facts, ModelType.TEXT))
    kind.set_vocab = lambda model: model._set_vocab_none()
    kind(folder, gguf.LlamaFileType.ALL_F32, path).write()
"""


def converted(name: str, folder: Path) -> tuple[Any, Path]:
    """Returns the model of `CONFIGS[name]` and the GGUF file that the converter writes.

    Raises RuntimeError with the converter's last line if it fails.
    """
    assert name in CONFIGS
    model = tiny_model(name, **_CHANGES.get(name, {}))
    source, path = folder / "model-tiny", folder / "model.gguf"
    saved(model, source)
    # Older files of GPT-2 have this field, which the converter reads.
    facts = json.loads((source / "config.json").read_text())
    if name == "gpt2":
        facts["n_ctx"] = facts["n_positions"]
        (source / "config.json").write_text(json.dumps(facts))
    # The converter cuts Gemma 3's table of tokens to the size of the vocabulary.
    words = {"model": {"vocab": dict.fromkeys(map(str, range(VOCABULARY)), 0)}, "added_tokens": []}
    (source / "tokenizer.json").write_text(json.dumps(words))
    command = [sys.executable, "-c", _CONVERT, str(CONVERTER), str(source), str(path)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the converter failed: {result.stderr.strip().splitlines()[-1]}")
    return model, path
