"""Prints the choices of a model with other margins; `scripts/margins` starts it.

The argument is a JSON object with `model`, `target`, `margins` (a number for each changed margin)
and `artifact` (the path to compile to, or null).
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tcc.schedule import margins

request = json.loads(sys.argv[1])
# The table changes before any other module of tcc is imported, because modules read it then.
margins.MARGINS = MappingProxyType(
    {
        name: replace(row, saves=request["margins"].get(name, row.saves))
        for name, row in margins.MARGINS.items()
    }
)

from tcc.driver import compile_model, model_choices
from tcc.options import Options

model, options = Path(request["model"]), Options(target=request["target"])
if request["artifact"]:
    compile_model(model, options, Path(request["artifact"]))
ledger = model_choices(model, options)
print(json.dumps({item.site.digest: item.choice.text for item in ledger.decisions()}))
