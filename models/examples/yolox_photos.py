"""Finds objects in photos with YOLOX-Nano.

python models/examples/yolox_photos.py yolox_nano.onnx cat.png cup.png
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tcc
from tcc.runtime.inputs import read_input
from tcc.runtime.preprocess import embedded_settings
from tcc.runtime.ranking import read_labels

HERE, LEAST_SCORE, MOST_OVERLAP = Path(__file__).parent, 0.4, 0.45


def objects(output: Any, size: int) -> Iterator[tuple[int, float, Any]]:
    """Yields class, score and box (left, top, right, bottom in pixels) of each object.

    A row of `output` has a cell's box, its score of an object, and the scores of its class.
    """
    grids = [(stride, np.mgrid[: size // stride, : size // stride]) for stride in (8, 16, 32)]
    cells = np.concatenate([grid[::-1].reshape(2, -1).T for _, grid in grids])
    stride = np.concatenate([np.full((grid[0].size, 1), stride) for stride, grid in grids])
    centre = (output[:, :2] + cells) * stride
    half = np.exp(output[:, 2:4]) * stride / 2
    boxes, scores = np.hstack((centre - half, centre + half)), output[:, 4:5] * output[:, 5:]
    best = scores.max(axis=1)
    numbers: list[int] = []
    for n in np.argsort(-best):  # Only the best of several overlapping boxes remains.
        is_new = all(overlap(boxes[n], boxes[m]) < MOST_OVERLAP for m in numbers)
        if best[n] >= LEAST_SCORE and is_new:
            numbers.append(n)
            yield int(scores[n].argmax()), float(best[n]), boxes[n]


def overlap(a: Any, b: Any) -> float:
    """Returns the shared area of two boxes, divided by the area of both together."""
    edges = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)
    shared = float(np.prod(edges))
    return shared / (float(np.prod(a[2:] - a[:2])) + float(np.prod(b[2:] - b[:2])) - shared)


def main(model: str, *photos: str) -> None:
    """Prints a line for each object; boxes are in pixels of the letterbox that the model sees."""
    module = tcc.compile(model, preprocess=HERE / "yolox.toml")
    port, labels = module.inputs[0], read_labels(HERE / "coco_labels.txt")
    settings = embedded_settings(module.manifest)[port.name]
    for photo in photos:
        output = module(read_input(port, photo, settings))[0]
        for number, score, box in objects(output, port.shape[2]):
            print(f"{Path(photo).name}: {labels[number]} {score:.2f} at {box.round().astype(int)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
