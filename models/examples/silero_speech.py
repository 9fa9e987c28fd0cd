"""Finds speech in a sound with Silero VAD.

python models/examples/silero_speech.py silero_vad.onnx speech.wav    # 16,000 samples per second
python models/examples/silero_speech.py silero_vad.onnx --say "a sentence"    # by espeak-ng
"""

import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tcc
from tcc.runtime.inputs import read_input

RATE, WINDOW, CONTEXT = 16000, 512, 64  # Samples per second, of a step, and before a step.
SPOKEN_RATE = 22050  # Samples per second of espeak-ng.


def spoken(text: str, port: Any) -> Any:
    """Returns the samples of a sentence of espeak-ng, with half a second of silence around it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "speech.wav")
        subprocess.run(["espeak-ng", "-w", path, text], check=True)
        samples = read_input(port, f"{path}:rate={SPOKEN_RATE}")[0]
    times = np.arange(0, len(samples), SPOKEN_RATE / RATE)
    resampled = np.interp(times, np.arange(len(samples)), samples).astype(np.float32)
    return np.pad(resampled, RATE // 2)


def probabilities(module: tcc.Module, samples: Any) -> list[float]:
    """Returns the probability of speech in each window of 32 ms."""
    samples = np.pad(samples, (CONTEXT, -len(samples) % WINDOW))
    state, rate = np.zeros((2, 1, 128), np.float32), np.array(RATE)
    results = []
    for start in range(0, len(samples) - CONTEXT, WINDOW):
        window = samples[None, start : start + CONTEXT + WINDOW]
        probability, state = module(window, state, rate)
        results.append(float(probability[0, 0]))
    return results


def main(model: str, *sound: str) -> None:
    """Prints the beginning and the end of each stretch of speech, in seconds."""
    module = tcc.compile(model)
    port = next(port for port in module.inputs if port.name == "input")
    is_text = sound[0] == "--say"
    samples = spoken(sound[1], port) if is_text else read_input(port, f"{sound[0]}:rate={RATE}")[0]
    windows = enumerate(p > 0.5 for p in probabilities(module, samples))
    for is_speech, stretch in groupby(windows, key=lambda item: item[1]):
        seconds = [number * WINDOW / RATE for number, _ in stretch]
        if is_speech:
            print(f"speech from {seconds[0]:.2f} to {seconds[-1] + WINDOW / RATE:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
