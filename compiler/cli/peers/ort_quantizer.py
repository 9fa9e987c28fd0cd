"""Quantises with ONNX Runtime: MODEL.onnx INPUTS.npz THREADS FOLDER CALIBRATED COUNT.

FOLDER has COUNT samples (`tcc.runtime.samples`), of which the first CALIBRATED give the ranges of
values.  `tcc.runtime.quantiser` describes requests and answers.  ONNX Runtime runs models without
optimisations.
"""

import sys
from functools import partial
from pathlib import Path

from tcc.cli.peers.ort import open_model
from tcc.frontends.onnx.static_quantizer import StaticQuantizer
from tcc.runtime.quantiser import serve_quantizer
from tcc.runtime.samples import StoredSamples

if __name__ == "__main__":
    model, _, threads, folder, calibrated, count = sys.argv[1:]
    serve_quantizer(
        StaticQuantizer(Path(model), Path(folder)),
        model,
        partial(open_model, threads=int(threads), optimised=False),
        StoredSamples(Path(folder)),
        int(calibrated),
        int(count),
    )
