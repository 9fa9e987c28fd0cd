"""The tokenizer that `tcc compile --tokenizer` adds to an artifact."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tcc.errors import ToolError, UserError, file_errors
from tcc.runtime.confined import ConfinedError, answer, serve

TOKENIZER = "tokenizer.json"  # the asset's name
# The limits of a file and of its check, where the largest public tokenizers have 35 MB.
_MOST_BYTES, _MOST_SECONDS, _MOST_MEMORY = 128 << 20, 60, 4 << 30


def tokenizer_asset(path: Path | None) -> dict[str, bytes]:
    """Returns the asset with the content of the tokenizer.json at `path`; empty without a path.

    Raises UserError for a file that the library tokenizers does not read, and ToolError where that
    library is missing. The library reads the file in a process with limits, because the file may
    be hostile.
    """
    if path is None:
        return {}
    where = f"--tokenizer {path}"
    hint = "give a tokenizer.json, as Hugging Face's models have it"
    if find_spec("tokenizers") is None:
        raise ToolError(
            "the library tokenizers is missing", where=where, hint="pip install 'tcc[lm]'"
        )
    with file_errors("the tokenizer cannot be read", where, hint), path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        text = data.decode()
        answer(__name__, text, seconds=_MOST_SECONDS, most_bytes=_MOST_MEMORY)
    except (ValueError, ConfinedError) as error:
        why = error.why if isinstance(error, ConfinedError) else str(error)
        raise UserError("the file is no tokenizer", where=where, why=why, hint=hint) from error
    return {TOKENIZER: data}


def _vocabulary_size(text: str) -> int:
    size: int = import_module("tokenizers").Tokenizer.from_str(text).get_vocab_size()
    return size


if __name__ == "__main__":
    serve(_vocabulary_size)
