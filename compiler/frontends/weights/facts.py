"""The facts of a model by GGUF's keys, read from a GGUF file or translated from config.json.

A key of GGUF's that tcc does not know, and that could change what the model computes, is refused.
"""

from collections.abc import Mapping
from typing import Any

from tcc.errors import UserError
from tcc.frontends.weights.checkpoint import Checkpoint
from tcc.frontends.weights.families import TABLES, ModelFamily
from tcc.frozen import entity

# No fact is a number above this one; it keeps products of two facts below 2**63.
_LARGEST = 1 << 30
MISSING = "the key is missing"


@entity
class Facts:
    """Facts by key; `where` is for errors."""

    values: Mapping[str, Any]
    where: str

    def number(self, key: str, default: float | None = None, lowest: float = 0) -> float:
        """Returns a number of at least `lowest`.

        Raises `UserError` for another value, and for an absent one without a default.
        """
        value = self.values.get(key, default)
        if value is None:
            raise self.fault(key, MISSING)
        if type(value) not in (int, float) or not lowest <= value <= _LARGEST:
            raise self.fault(key, f"{str(value)[:80]} is no number from {lowest} to {_LARGEST}")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        """Returns an integer of at least 1; raises `UserError` like `number`."""
        value = self.number(key, default, 1)
        if value != int(value):
            raise self.fault(key, f"{value} is not whole")
        return int(value)

    def fault(self, key: str, why: str) -> UserError:
        """Returns the error to raise for a fact."""
        return UserError(
            "the model's description cannot be used",
            where=f"{self.where}: {key}",
            why=why,
            hint="convert the model again from its source, or export it with torch.export",
        )


def facts_of(checkpoint: Checkpoint, family: ModelFamily) -> Facts:
    """Returns the facts of a model; raises `UserError` for a key that is not supported."""
    source, keys = Facts(checkpoint.facts, checkpoint.where), TABLES["keys"]
    if checkpoint.form != "gguf":
        _check_folder(source, family)
        pairs = ((key, source.values.get(name)) for key, names in keys.items() for name in names)
        return Facts({key: value for key, value in pairs if value is not None}, source.where)
    start = f"{family.architecture}."
    values = {k.removeprefix(start): v for k, v in source.values.items() if k.startswith(start)}
    for key in values.keys() - {*keys, *TABLES["implied"], *TABLES["rotary"]}:
        raise source.fault(start + key, "tcc does not know what this key changes")
    return Facts(values, source.where)


def _check_folder(facts: Facts, family: ModelFamily) -> None:
    """Raises `UserError` for a value that tcc does not support."""
    only = dict(TABLES["only"])
    names = [name for name, kind in TABLES["activations"].items() if kind == family.activation]
    # Configurations of Gemma have the keys of two generations, of which one may be null.
    keys = ("hidden_act", "hidden_activation", "activation_function")
    only |= {key: [*names, None] for key in keys}
    for key, values in only.items():
        if key in facts.values and facts.values[key] not in values:
            raise facts.fault(key, f"{str(facts.values[key])[:80]} is not supported")
