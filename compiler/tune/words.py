"""The operation and the shapes of a site in words, for readers of a lock.

the site of a matmul with a softmax    ->    schedule: sum, max, sum: f32[n0,64], f32[64,32]
"""

import re

_TYPE = re.compile(r"\w+\[[^\[\]]*\]")
_OPERAND = re.compile(rf"p\d+: ({_TYPE.pattern})")
_REDUCTION = re.compile(r" = (?:tuple )?(\w+)\(i\d+: ")
_LONGEST = 160


def words(kind: str, content: str) -> str:
    """Returns the kind of a site, its reductions, and the types that its content begins with.

    The result depends on the site alone, and has at most 160 characters.
    """
    first = content.partition("\n}")[0]
    types = _OPERAND.findall(first) or _TYPE.findall(first)
    reductions = ", ".join(_REDUCTION.findall(first)) if "expr(" in first else ""
    text = ": ".join(filter(None, (kind, reductions, ", ".join(types))))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
