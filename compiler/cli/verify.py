"""`tcc verify`."""

from typing import TYPE_CHECKING, Any

import click
from tcc.cli.choices import OUTPUT, PATH, json_flag, rank_flags, run_flags, switch
from tcc.cli.deadline import timeout_flag
from tcc.later import later

if TYPE_CHECKING:
    from tcc.cli import verification
else:
    verification = later("tcc.cli.verification")


@click.command()
@click.argument("model", type=PATH)
@click.argument("artifact", type=PATH, required=False)
@run_flags
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="The most that the precision of ARTIFACT may cost: the largest difference from the "
    "unrounded model, relative to the largest expected value.  Default: any.",
)
@click.option(
    "--top1",
    type=click.FloatRange(0, 1),
    help="The least share of rows in which the largest value of ARTIFACT has the index that it has "
    "in the unrounded model, as in 0.99.  Default: any.",
)
@switch(
    "--layers",
    "Compares every value of MODEL, compiled for this CPU with the precision and weights of "
    "ARTIFACT, and names the first node that is wrong.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    default="2GiB",
    show_default=True,
    help="With --layers: bytes of values held at once.",
)
@switch("--keep-going", "With --layers: go on behind a wrong node.")
@click.option(
    "--reproduce",
    metavar="DIR",
    type=OUTPUT,
    help="With --layers: write the smallest model that shows the fault here, with its inputs.",
)
@rank_flags(
    "Verifies this many ranks on this host: each compares its results with the reference, and "
    "the bits of all ranks have to be equal. Without ARTIFACT the model is compiled for them."
)
@click.option(
    "--peers",
    default="",
    metavar="NAMES",
    help="Compares the first run also with other runtimes of `tcc bench`, such as tvm (Relax) or "
    "openvino, as far as they run MODEL.",
)
@click.option("--report", is_flag=True, hidden=True, help="Ends with exit code 0.")
@json_flag
@timeout_flag
def verify(**flags: Any) -> int:
    """Compares ARTIFACT (default: compiled now) with MODEL, an ONNX file or a .pt2 archive.

    The reference is ONNX Runtime without optimisations, or PyTorch for an archive, which runs the
    archive's calls one by one and unpickles nothing.  Where it is not installed or does not take
    the types or random draws, the reference is tcc's own evaluator, which is slow; the output says
    so.  Without --input it runs on several random inputs of two sizes.  The first comparison is
    with the model whose weights and operands are rounded as the artifact rounds them: the exit code
    is 1 if an output differs by more than a few roundings.  The second is with the unrounded model:
    the exit code is 1 if an output differs by more than --tolerance, or its classes agree less than
    --top1.  A folder in --input is a run for each of its files; for narrow precisions the output
    then has the share of rows whose first class, or one of five, is that of the unrounded model.

    \b
    Example:
      tcc verify model.onnx model.so --timeout 600
      tcc verify model.onnx model.so --input x=@photos:crop,scale=1/255 --top1 0.99
      tcc verify model.onnx --layers --reproduce fault/
      tcc verify model.onnx --nproc 2
    """
    return verification.verify(**flags)
