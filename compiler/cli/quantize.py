"""`tcc quantize`."""

from typing import Any

import click
from tcc.cli.choices import COUNT, OUTPUT, PATH, json_flag
from tcc.cli.deadline import timeout_flag
from tcc.cli.later_modules import quantization


@click.command()
@click.argument("model", type=PATH)
@click.option(
    "--data",
    required=True,
    multiple=True,
    metavar="FOLDER",
    help="Samples that give the ranges of values, about 100: a folder with a file for each, or "
    "NAME=@FOLDER for each input, with settings as in FOLDER:bgr,letterbox=114.",
)
@click.option(
    "--check",
    multiple=True,
    metavar="FOLDER",
    help="Other samples, which give errors and agreement; default: those of --data.",
)
@click.option("-o", "--output", type=OUTPUT, required=True, metavar="OUT.onnx")
@click.option(
    "--error",
    type=click.FloatRange(0),
    help="The largest allowed error, relative to the largest value that MODEL gives for a sample.",
)
@click.option(
    "--top1",
    type=click.FloatRange(0, 1),
    help="The least share of rows with MODEL's class, as in 0.99.",
)
@click.option(
    "--method",
    "methods",
    type=click.Choice(["MinMax", "Percentile", "Entropy"], case_sensitive=False),
    multiple=True,
    default=("MinMax",),
    show_default=True,
    help="How samples give ranges; may be repeated.",
)
@click.option("--threads", type=COUNT, help="Default: all CPUs.")
@json_flag
@timeout_flag
def quantize(**flags: Any) -> int:
    """Quantises convolutions and matrix products of the ONNX file MODEL to int8.

    ONNX Runtime's static quantiser makes a model with a scale per tensor, and one with a scale per
    channel. Both are compiled, compared with MODEL and timed, and the model with the smaller mean
    error is written. If it does not keep --error or --top1, the layers that cost most stay in f32,
    as few as possible. If no model keeps them, nothing is written and the exit code is 1.

    A file is an array with its batch axis (.npy), a picture or a sound, as in `tcc run`, or an
    archive (.npz) with an array for each input.

    \b
    Example:
      tcc quantize yolox.onnx --data photos:bgr,letterbox=114 -o q.onnx --error 0.02
      tcc quantize magika.onnx --data samples --check others --top1 0.99 -o q.onnx
    """
    return quantization.quantize(**flags)
