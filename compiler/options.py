"""Options: every choice of one compile, as data.

The fields of `Options` are the one list of choices.  From each follow the keyword argument of
`tcc.compile`, the flag of `tcc compile`, its help and its check.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from math import inf, prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypedDict, TypeVar

from tcc.budgets import BUDGETS, Budgets, budgets_help, read_budgets
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.zipped import zip_equal

_T = TypeVar("_T")
Shape = tuple[int, ...]
SymbolicShape = tuple[int | str, ...]
MOST_BUCKETS = 32  # each bucket adds code of its own to the artifact
MOST_RANKS = 64  # of a communicator of one host, and of a plan
NUMERICS = ("default", "strict")
LEVELS = (0, 1, 2, 3)
# The kinds of files that a compile emits, and the suffixes of their names.
EMITS = MappingProxyType({"shared": ".so", "object": ".o", "static": ".a"})
GPU_KERNELS = ("auto", "triton")
PRECISIONS = ("f32", "tf32", "bf16", "f16", "int8")  # the last three narrow weights
STATE_TYPES = (*PRECISIONS[2:4], "int8")
# Integer types of weights, and their bits.
WEIGHTS = MappingProxyType({"int8": 8, "int4": 4})
INT8_ERROR = 0.02  # the default of --int8-error
# Allowed difference from the results in f32, relative to the largest value, for `tcc verify`.
TOLERANCES = MappingProxyType(
    {"f32": 1e-4, "tf32": 2e-3, "bf16": 2e-2, "f16": 2e-3, "int8": 3e-2, "int4": 0.3}
)


@frozen
class Flag:
    """The command-line flag of a field, and the check of its values.

    `spelling` is the flag, `metavar` the name of its value (empty for a switch). `read` converts a
    keyword's value, or the list of a `repeated` flag's texts, to the field's value. It raises
    ValueError with one sentence for a value that is not allowed.
    """

    name: str
    spelling: str
    metavar: str
    help: str
    read: Callable[[Any], Any]
    repeated: bool = False


# ---- readers: a value from Python, or text from a command line, to the field's value ----------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not a name")
    return value


def is_reserved(name: str) -> bool:
    """True where a C identifier belongs to tcc's own interface, so that no model may use it."""
    return name == "tcc" or name.startswith("tcc_")


def _identifier(value: Any) -> str:
    if not isinstance(value, str) or not (value.isascii() and value.isidentifier()):
        raise ValueError(f"{value!r} is not a C identifier")
    if is_reserved(value):
        raise ValueError(f"{value!r} is a name of tcc's own interface")
    return value


def _converted(value: Any, kind: Callable[[Any], _T]) -> _T | None:
    """Returns the value as `kind` makes it; None for a value that has no such form."""
    try:
        return kind(value)
    except (OverflowError, TypeError, ValueError):
        return None


def _one_of(allowed: Sequence[Any], kind: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        converted = _converted(value, kind)
        if converted not in allowed:
            raise ValueError(f"{value!r} is none of {', '.join(map(str, allowed))}")
        return converted

    return read


def _positive(value: Any) -> int:
    count = _converted(value, int) or 0
    if count < 1 or (isinstance(value, float) and value != count):
        raise ValueError(f"{value!r} is not a count of at least 1")
    return count


def _factor(value: Any) -> float:
    factor = _converted(value, float) or 0.0
    if not 1 <= factor < inf:
        raise ValueError(f"{value!r} is not a factor of at least 1")
    return factor


def _share(value: Any) -> float:
    """Returns a fraction from a number from 0 to 1, or from a text such as `1%` or `0.01`."""
    text = str(value)
    number = _converted(text.removesuffix("%"), float)
    share = inf if number is None else number / (100 if text.endswith("%") else 1)
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is no part; write 1% or 0.01")
    return share


def _paths(value: Any) -> tuple[Path, ...]:
    return tuple(map(_path, (value,) if isinstance(value, str | Path) else value))


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError(f"{value!r} is not a path")
    return Path(value)


def read_shape(text: str) -> Shape:
    """Parses a shape such as `1x3x224x224`; the empty text is a scalar.

    Raises ValueError for other texts.
    """
    sizes = text.split("x") if text else []
    if not all(size.isascii() and size.isdigit() for size in sizes):
        raise ValueError(f"{text!r} is not a shape; write sizes as in 1x3x224x224")
    return tuple(int(size) for size in sizes)


def _pairs(value: Any, form: str) -> tuple[tuple[str, Any], ...]:
    """Returns the pairs of a mapping, or of a sequence of `NAME=VALUE` texts.

    Raises ValueError for a text of another form, and for a name that occurs twice.
    """
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        parts = [str(item).partition("=") for item in value]
        for key, equals, _ in parts:
            if not key or not equals:
                raise ValueError(f"{key + equals!r:.60} does not have the form {form}")
        pairs = [(key, right) for key, _, right in parts]
    names = [name for name, _ in pairs]
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise ValueError(f"{duplicates[0]!r} is given twice")
    return tuple(pairs)


def _shapes(value: Any) -> tuple[tuple[str, SymbolicShape], ...]:
    def size(part: Any) -> int | str:
        if isinstance(part, str) and part.isidentifier():
            return part
        (number,) = read_shape(str(part))
        return number

    def shape(spec: Any) -> SymbolicShape:
        parts = spec.split("x") if isinstance(spec, str) else spec
        return tuple(map(size, parts)) if spec != "" else ()

    return tuple((name, shape(spec)) for name, spec in _pairs(value, "NAME=SHAPE"))


def _states(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((_text(past), _text(present)) for past, present in _pairs(value, "PAST=PRESENT"))


def _sizes(value: Any) -> tuple[tuple[str, int], ...]:
    return tuple((name, _positive(size)) for name, size in _pairs(value, "SYM=SIZE"))


def _ranks(value: Any) -> tuple[int, ...]:
    """Returns numbers of ranks in ascending order; raises UserError for other values."""
    parts = value.split(",") if isinstance(value, str) else value
    try:
        counts = [_positive(part) for part in ((parts,) if isinstance(parts, int) else parts)]
        duplicates = [count for count in counts if counts.count(count) > 1]
        if duplicates:
            raise ValueError(f"{duplicates[0]} is given twice")
        if not 0 < max(counts, default=0) <= MOST_RANKS:
            raise ValueError(f"{max(counts, default=0)} is not in 1 to {MOST_RANKS}")
    except (TypeError, ValueError) as error:
        raise UserError(
            "these are no numbers of ranks",
            why=error,
            hint=f"give numbers from 1 to {MOST_RANKS}, each once, as in 1,2,4",
        ) from error
    return tuple(sorted(counts))


def _buckets(value: Any) -> tuple[tuple[str, Shape], ...]:
    def sizes(spec: Any) -> Shape:
        parts = spec.split(",") if isinstance(spec, str) else tuple(spec)
        counts = tuple(dict.fromkeys(_positive(part) for part in parts))
        if not counts:
            raise ValueError("a bucket needs a size")
        return counts

    buckets = tuple((_text(name), sizes(spec)) for name, spec in _pairs(value, "SYM=SIZE,SIZE"))
    if prod(len(spec) for _, spec in buckets) > MOST_BUCKETS:
        raise ValueError(f"more than {MOST_BUCKETS} buckets")
    return buckets


def _option(
    spelling: str,
    metavar: str,
    help: str,
    reader: Callable[[Any], Any],
    *,
    repeated: bool = False,
    **default: Any,
) -> Any:
    """Returns a dataclass field with its flag in the metadata; `default` goes to `field`."""
    return field(metadata={"flag": (spelling, metavar, help, reader, repeated)}, **default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices of one compile.  Make one with `read_options`, which checks the values."""

    # fmt: off
    target: str = _option(
        "--target", "KIND",
        "What to compile for: cpu, cpu:aarch64, cuda, rocm, architectures as in "
        "cuda:sm_80,sm_90; several in one file as in cuda+rocm+cpu, of which a run takes a GPU if "
        "the machine has one.",
        _text, default="cpu",
    )
    cpu: str = _option(
        "--cpu", "NAME",
        "The processor of code for the CPU: host (this machine's), x86-64-v3, neoverse-n1, ...",
        _text, default="host",
    )
    inputs: tuple[tuple[str, SymbolicShape], ...] = _option(
        "--input", "NAME=SHAPE",
        "Fixes the sizes of one input, as in image=1x3x224x224.  Symbolic sizes of the model "
        "that no --input fixes stay symbolic: one artifact serves all of them.  A name in the "
        "place of a size, as in tokens=1xlength, keeps it symbolic under that name.  An input with "
        "an initialiser as its default becomes an input that every run must give.",
        _shapes, default=(), repeated=True,
    )
    batch: int | None = _option(
        "--batch", "COUNT",
        "Compiles a model with a fixed batch for this many samples.  An error names a node for "
        "which nothing proves that it computes each sample by itself.",
        _positive, default=None,
    )
    preprocess: Path | None = _option(
        "--preprocess", "FILE",
        "Settings of inputs (TOML) that the artifact carries, with which tcc run reads pictures "
        "and sounds: version = 1, then a table [inputs.NAME] with settings as in tcc run --help.",
        _path, default=None,
    )
    tokenizer: Path | None = _option(
        "--tokenizer", "FILE",
        "A tokenizer.json that the artifact carries, in place of the model's own: "
        "module.assets[\"tokenizer.json\"]. It must be a file that the library tokenizers reads.",
        _path, default=None,
    )
    typical: tuple[tuple[str, int], ...] = _option(
        "--typical", "SYM=SIZE",
        "The value of a symbolic size that the general code is chosen for, as in seq=512; the code "
        "serves all other values too.  Default: from a torch program's example inputs, else 128.",
        _sizes, default=(), repeated=True,
    )
    buckets: tuple[tuple[str, Shape], ...] = _option(
        "--bucket", "SYM=SIZE,...",
        "Separate code for these values of a symbolic size, as in seq=32,64,128; the general code "
        "serves all other values.  Several symbolic sizes get code for each combination.",
        _buckets, default=(), repeated=True,
    )
    ranks: tuple[int, ...] = _option(
        "--ranks", "COUNT,...",
        "Divides the model among this many processes (ranks), as in 1,2,4: a plan for each number "
        "in one file, of which every rank maps its own part of the weights.  Start the ranks by "
        "tcc run --nproc, mpirun, torchrun or srun.",
        _ranks, default=(1,),
    )
    state: tuple[tuple[str, str], ...] = _option(
        "--state", "PAST=PRESENT",
        "Output PRESENT is input PAST updated in place (a KV cache).  Where the model appends "
        "rows to PAST, the caller hands an array of PRESENT's size whose front holds the old "
        "rows; after the run it holds PRESENT.  A * stands for any text, as in 'past_*=present_*'.",
        _states, default=(), repeated=True,
    )
    state_type: str | None = _option(
        "--state-type", "TYPE",
        "bf16, f16 or int8: states to which the model appends rows (KV caches) are arrays of this "
        "type.  New rows are rounded to it, and sums stay f32.  With int8 a state NAME.scales has "
        "the scale of each row.",
        _one_of(STATE_TYPES, str), default=None,
    )
    level: int = _option(
        "-O", "LEVEL", "How much to optimise, 0 to 3.",
        _one_of(LEVELS, int), default=2,
    )
    numerics: str = _option(
        "--numerics", "MODE",
        "strict turns off algorithms that trade rounding for speed, reordered sums of products and "
        "the folding of factors into weights, and reads the values that masks hide.",
        _one_of(NUMERICS, str), default="default",
    )
    derive: bool = _option(
        "--no-derive", "",
        "Keeps sums and products in the model's order, factors outside of weights, and "
        "convolutions direct, even where another algorithm is predicted to be faster.",
        bool, default=True,
    )
    weight_growth: float = _option(
        "--weight-growth", "FACTOR",
        "How many times their size weights may take where larger weights make the model faster; "
        "1 keeps their size.",
        _factor, default=5.0,
    )
    machine: Path | None = _option(
        "--machine", "FILE",
        "Constants of the machine to choose schedules for, from tcc doctor --calibrate; default: "
        "those of the processor's family.",
        _path, default=None,
    )
    plan: tuple[Path, ...] = _option(
        "--plan", "FILE",
        "With --ranks: a file of tcc plan, which fixes how nodes are divided among its number of "
        "ranks.  A plan may leave nodes out.",
        _paths, default=(), repeated=True,
    )
    cluster: Path | None = _option(
        "--cluster", "FILE",
        "With --ranks: hosts, their memory and their links as JSON, for which plans are made; tcc "
        "plan --help shows such a file.  Default: one host.",
        _path, default=None,
    )
    choices: Path | None = _option(
        "--choices", "FILE",
        "Forces choices of the compiler: a file of JSON lines, each with a site and one of its "
        "alternatives, as tcc inspect MODEL --choices --json prints them.",
        _path, default=None,
    )
    tuned: Path | None = _option(
        "--tuned", "LOCK",
        "Takes the choices of a lock, as tcc tune MODEL --pin writes it. Entries that do not fit "
        "have no effect and are named; the summary counts them.",
        _path, default=None,
    )
    require_tuned: float | None = _option(
        "--require-tuned", "PART",
        "With --tuned: fails, and writes no file, if a kernel takes more than this part of the "
        "predicted time and has no entry in the lock, as in 1%.",
        _share, default=None,
    )
    precision: str = _option(
        "--precision", "TYPE",
        "f32; tf32: matmuls of f32 on the matrix units of GPUs, operands rounded to 11 bits; "
        "bf16: weights in bf16, their other operands too where the processor multiplies bf16, "
        "sums in f32; f16: weights in f16, arithmetic in f32.  Matmuls and convolutions that this "
        "would slow down stay f32.  int8: matmuls and, with --calibrate, convolutions multiply "
        "bytes, on CPUs that have such an instruction.",
        _one_of(PRECISIONS, str), default="f32",
    )
    calibrate: tuple[Path, ...] = _option(
        "--calibrate", "DATA",
        "With --precision int8: samples that give ranges of values and errors of layers, as for "
        "tcc quantize --data, or one archive (.npz) with an array of samples for each input.",
        _paths, default=(), repeated=True,
    )
    int8_error: float = _option(
        "--int8-error", "SHARE",
        "With --precision int8: the largest error of a layer, the root mean square relative to "
        "that of its result; other layers stay in f32.  Default: 0.02.",
        _share, default=INT8_ERROR,
    )
    weights: str | None = _option(
        "--weights", "TYPE",
        "int8 or int4: weights of matmuls as integers with a scale for every 32, "
        "arithmetic in f32.",
        _one_of(tuple(WEIGHTS), str), default=None,
    )
    activations: str | None = _option(
        "--activations", "TYPE",
        "int8: what a matmul multiplies with integer weights becomes bytes, with a scale for "
        "every 32 of a row, and bytes are multiplied.  On CPUs, for weights of --weights or "
        "integer weights that the model stores.",
        _one_of(("int8",), str), default=None,
    )
    allow_pickle: bool = _option(
        "--allow-pickle", "",
        "Lets torch unpickle what a .pt2 archive holds, which runs any code that its author put "
        "in; only for files that you trust.",
        bool, default=False,
    )
    allow_host: bool = _option(
        "--allow-host", "",
        "Lets a program for GPUs call functions that only the host has, with copies there and "
        "back.",
        bool, default=False,
    )
    gpu_kernels: str = _option(
        "--gpu-kernels", "KIND",
        "auto: matmuls and attention for Hopper (sm_90) may be Gluon kernels with separate warps "
        "for copies; triton: Triton kernels only.",
        _one_of(GPU_KERNELS, str), default="auto",
    )
    jobs: int = _option(
        "--jobs", "COUNT",
        "Processes that price and generate code; the output does not depend on it.",
        _positive, default_factory=lambda: len(os.sched_getaffinity(0)),
    )
    budgets: Budgets = _option(
        "--budget", "NAME=VALUE", budgets_help(),
        read_budgets, default=BUDGETS, repeated=True,
    )
    emit: str = _option(
        "--emit", "KIND",
        "shared: a shared library; object or static: an object file or a static library, which "
        "a program links into its own file.",
        _one_of(tuple(EMITS), str), default="shared",
    )
    name: str = _option(
        "--name", "NAME", "The model's name in its C interface.",
        _identifier, default="",
    )
    dump: Path | None = _option(
        "--dump", "DIR", "Writes the model after every step that changed it here.",
        _path, default=None,
    )
    verify: bool = _option(
        "--verify", "", "Verifies the model after every step that changed it.",
        bool, default=False,
    )
    stop_after: str = _option(
        "--stop-after", "STEP",
        "Prints the model after a step and compiles no further; --time-passes names the steps.",
        str, default="",
    )
    keep_ir: bool = _option(
        "--keep-ir", "",
        "Keeps the kernels' LLVM IR or Triton source in the artifact, for tcc inspect "
        "--form.",
        bool, default=False,
    )
    time_passes: bool = _option(
        "--time-passes", "", "Prints how long every step took.",
        bool, default=False,
    )
    # fmt: on

    @property
    def bucket_sizes(self) -> tuple[dict[str, int], ...]:
        """Returns the sizes of each bucket by symbol, in the user's order."""
        if not self.buckets:
            return ()
        names = [name for name, _ in self.buckets]
        combined = product(*(sizes for _, sizes in self.buckets))
        return tuple(dict(zip_equal(names, sizes)) for sizes in combined)

    @property
    def weight_bits(self) -> int:
        """Returns the bits of an integer weight; 0 where no weights are stored as integers."""
        return 0 if self.weights is None else WEIGHTS[self.weights]

    @property
    def narrow(self) -> str:
        """Returns the type in which weights are stored where possible; "" if they keep their
        types."""
        return self.weights or (self.precision if self.precision in PRECISIONS[2:] else "")


FLAGS = tuple(Flag(item.name, *item.metadata["flag"]) for item in fields(Options))


class Choices(TypedDict, total=False):
    """The keywords of `tcc.compile`: the fields of `Options`, with the types that they accept."""

    cpu: str
    inputs: Any
    dynamic_shapes: Any
    batch: int | None
    preprocess: str | Path | None
    tokenizer: str | Path | None
    typical: Mapping[str, int] | Sequence[str]
    buckets: Mapping[str, Sequence[int]] | Sequence[str]
    ranks: int | str | Sequence[int]
    state: Mapping[str, str] | Sequence[str]
    state_type: Literal["bf16", "f16", "int8"] | None
    level: int
    numerics: Literal["default", "strict"]
    derive: bool
    weight_growth: float
    machine: str | Path | None
    plan: str | Path | Sequence[str | Path]
    cluster: str | Path | None
    choices: str | Path | None
    tuned: str | Path | None
    require_tuned: float | str | None
    precision: Literal["f32", "tf32", "bf16", "f16", "int8"]
    calibrate: str | Path | Sequence[str | Path]
    int8_error: float
    weights: Literal["int8", "int4"] | None
    activations: Literal["int8"] | None
    allow_pickle: bool
    allow_host: bool
    gpu_kernels: Literal["auto", "triton"]
    jobs: int
    budgets: Mapping[str, int | str] | Sequence[str]
    emit: Literal["shared", "object", "static"]
    name: str
    dump: str | Path | None
    verify: bool
    stop_after: str
    keep_ir: bool
    time_passes: bool


# Hints for keywords that other compilers use.
_ELSEWHERE = MappingProxyType(
    dict.fromkeys(
        ("o", "out", "output", "output_path", "path"),
        "module = tcc.compile(...) is the loaded artifact, and module.save(path) writes it",
    )
    | dict.fromkeys(
        ("args", "example_args", "example_inputs", "kwargs"),
        "give example inputs as inputs=(x,)",
    )
    | {"no_derive": "write derive=False", "dtype": "write precision=", "input": "write inputs="}
)


def read_options(values: Mapping[str, Any], *, python: bool = True) -> Options:
    """Returns options from keyword arguments, or (`python` false) from a command line's texts.

    Raises UserError, which names the option as the user spelled it, for an unknown name or a value
    that is not allowed.
    """
    flags = {flag.name: flag for flag in FLAGS}
    checked = {}
    for name, value in values.items():
        if name not in flags:
            raise UserError(
                f"unknown option {name!r}",
                where="tcc.compile",
                hint=_ELSEWHERE.get(name, f"there are: {', '.join(flags)}"),
            )
        flag = flags[name]
        if value is None:
            continue
        where = f"{name}=" if python else flag.spelling
        try:
            checked[name] = flag.read(value)
        except UserError as error:
            error.where = where
            raise
        except (TypeError, ValueError) as error:
            raise UserError("bad option", where=where, why=error) from error
    return Options(**checked)
