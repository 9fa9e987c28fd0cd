"""Starts `build.py` inside `.venv`."""

import argparse
import sys
from pathlib import Path

# Imports come from scripts/, not from this folder, whose modules have common names (plan, names).
sys.path[0] = str(Path(__file__).resolve().parents[1])

from environment import enter

from gpu.names import asks_for_models

parser = argparse.ArgumentParser(add_help=False)
parser.add_argument("--only", default="")
only = parser.parse_known_args()[0].only
# The environment has tcc with Triton and, if models are asked for, the packages that build them.
enter("gpu", "dev", *(("models",) if asks_for_models(only) else ()))

from gpu.build import main

sys.exit(main())
