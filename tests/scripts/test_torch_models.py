"""A sample of the sweep over architectures of transformers, by way of archives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.processes import finished

FRAMEWORKS = Path(__file__).resolve().parents[2] / "scripts" / "frameworks"

CODE = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")
import json
from architectures import CASES
from torch_models_worker import archived_results, check
print(json.dumps([check(CASES[name], archived_results) for name in sys.argv[2:]]))
"""


@pytest.mark.xdist_group("torch")
def test_architectures_go_through_archives() -> None:
    """BERT's mask is converted by `aten.to.device`, which names a device."""
    process = finished(sys.executable, "-c", CODE, FRAMEWORKS, "bert")
    assert process.returncode == 0, process.stderr
    outcomes = json.loads(process.stdout.splitlines()[-1])
    assert [outcome for outcome, _ in outcomes] == ["pass"], outcomes
