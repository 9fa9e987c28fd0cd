"""Chat templates: messages as the text that a language model was trained to continue.

A template is a text of Jinja that comes with the model, so it may be hostile. It is rendered in
Jinja's immutable sandbox, in a process with limits of time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tcc.runtime.confined import ConfinedError, answer, serve
from tcc.runtime.reports import InputError, MissingLibraryError

_MOST_SECONDS, _MOST_BYTES = 1.0, 256 << 20  # of processor time, and of memory
_MOST_CHARACTERS = 1 << 22  # of a rendered text


def chat_text(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    bos: str = "",
    eos: str = "",
    begin_answer: bool = True,
) -> str:
    """Returns the text of `messages` by a chat template, as Hugging Face's models have one.

    A message has the entries `role` and `content`. `bos` and `eos` are the texts of the tokens that
    begin and end a text. With `begin_answer` the text ends where the model's answer begins.

    Raises InputError if the template refuses the messages, is no template, or takes more than 1 s
    of processor time or 256 MiB of memory, and MissingLibraryError without jinja2.
    """
    if find_spec("jinja2") is None:
        raise MissingLibraryError("the library jinja2 is missing", hint="pip install 'tcc[lm]'")
    request = {
        "template": template,
        "values": {
            "messages": list(map(dict, messages)),
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": begin_answer,
            "tools": None,
            "documents": None,
        },
    }
    try:
        text: str = answer(__name__, request, seconds=_MOST_SECONDS, most_bytes=_MOST_BYTES)
    except ConfinedError as error:
        raise InputError(
            "the chat template cannot be rendered",
            why=error.why,
            hint="write the whole prompt without the template",
        ) from error
    return text


def _rendered(request: Mapping[str, Any]) -> str:
    """Renders a template with the names that Hugging Face's transformers gives it."""
    environment = import_module("jinja2.sandbox").ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    text: str = environment.from_string(request["template"]).render(request["values"])
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"its text has more than {_MOST_CHARACTERS} characters")
    return text


def _refuse(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    import_module("jinja2.sandbox")  # before the time of the template begins
    serve(_rendered)
