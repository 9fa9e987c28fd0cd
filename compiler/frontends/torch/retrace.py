"""Traces programs of archives anew with torch, so that its rules decompose operators that the table
lacks.

Nothing of the file is evaluated.  The trace runs on tensors without elements.  It runs only
operators of ATen that the table has or torch has a rule for, arithmetic on sizes, and the blocks of
calls.
"""

import inspect
import logging
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from tcc.errors import UserError
from tcc.frontends.torch.calls import (
    Call,
    CallBlock,
    Constant,
    ElementType,
    Fixed,
    Formula,
    Opaque,
    Ref,
    Tensor,
    TorchProgram,
)
from tcc.frontends.torch.exported import decomposed, described, exported, has_rule, refusing
from tcc.frontends.torch.regions import REGIONS
from tcc.frontends.torch.support import has_converter
from tcc.ir.op import Array
from tcc.ir.types import DType
from tcc.zipped import zip_equal

_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "_operator.getitem": operator.getitem,
    "math.trunc": math.trunc,
    **{
        f"_operator.{name}": getattr(operator, name)
        for name in ("add sub mul floordiv truediv mod neg pos eq ne lt le gt ge and_ or_").split()
    },
    **{
        f"torch.sym_{name}": getattr(torch, f"sym_{name}")
        for name in "not int float ite max min sqrt".split()
    },
}
_FORMATS = {
    f"memory_format {number}": value
    for number, value in enumerate(
        (None, torch.contiguous_format, torch.channels_last, torch.channels_last_3d,
         torch.preserve_format)
    )
} | {"layout 7": torch.strided}  # fmt: skip


def _grouped_rows(input: Any, weight: Any, offs: Any) -> Any:
    """Multiplies each group of consecutive rows by its own matrix.

    `offs` are the ends of the groups.
    """
    count = weight.shape[0]
    group = (offs <= torch.arange(input.shape[0])[:, None]).sum(1)
    row_products = (input[:, None] @ weight[group.clamp(max=count - 1)])[:, 0]
    return torch.where((group < count)[:, None], row_products, 0.0)


# Operators of libraries that this process may lack, written with torch's operators.
_FOREIGN: Mapping[str, Callable[..., Any]] = {
    "transformers.grouped_mm_fallback.default": _grouped_rows
}
_CPU = torch.empty(0).device  # the device on which tensors of all devices are traced
_LARGEST = 1 << 31
_TRACED = "traced by torch: "  # prefix of names of constants that torch's rules add


def is_traceable(call: Call) -> bool:
    """True if torch may run a call.

    That is so for arithmetic, for blocks, and for operators of ATen, in place or not, that the
    table has or torch has a rule for.
    """
    if call.target in _ARITHMETIC or call.target in REGIONS or has_converter(call.target):
        return True
    function = _operator(call.target)
    if function is None:
        return False
    packet, _, overload = call.target.removeprefix("aten.").partition(".")
    plain = f"aten.{packet.removesuffix('_')}.{overload}"
    return has_rule(function) or has_converter(plain) or has_rule(_operator(plain))


def _operator(target: str) -> Any:
    """Returns the operator of ATen, or the collective, of this name; None if there is none."""
    library, _, name = target.partition(".")
    if library not in ("aten", "_c10d_functional"):
        return None
    packet, _, overload = name.partition(".")
    overload_object = getattr(getattr(getattr(torch.ops, library), packet, None), overload, None)
    return overload_object if isinstance(overload_object, torch._ops.OpOverload) else None


def retraced(program: TorchProgram) -> TorchProgram:
    """Returns the program without in-place updates.

    Operators that the table lacks are decomposed by torch's rules, as far as these go. All calls
    must be traceable. Raises `UserError` where torch refuses them.
    """
    replay = _Replay(program)
    examples = {name: _example(program, meta) for name, meta in replay.given.items()}
    axes = {name: _open_axes(program, meta) for name, meta in replay.given.items()}
    with _unlogged():
        traced = described(decomposed(exported(replay, examples, axes)))
    names = replay.names

    def contents(name: str) -> tuple[Array, DType]:
        traced_name = name.removeprefix(_TRACED)
        return program.contents(name) if traced_name == name else traced.contents(traced_name)

    def renamed(owner: Constant | Fixed) -> Constant | Fixed:
        if isinstance(owner, Fixed):
            return owner
        return Constant(names.get(owner.name, _TRACED + owner.name))

    return replace(
        traced,
        owned={name: renamed(owner) for name, owner in traced.owned.items()},
        output_names=program.output_names,
        guards=program.guards,
        contents=contents,
        trusted=False,
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silences the tracebacks that torch logs; the error that follows has the message."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _example(program: TorchProgram, meta: Tensor) -> Any:
    """Returns a tensor with the sizes of the archive's example; its memory is never touched."""
    sizes, strides = (
        [_hint(program, size) for size in part] for part in (meta.shape, meta.strides)
    )
    try:
        return torch.empty_strided(sizes, strides, dtype=getattr(torch, meta.dtype))
    except RuntimeError as error:
        raise UserError(
            "torch cannot trace the archive for its example sizes",
            why=str(error)[:500],
            hint="save what program.run_decompositions() gives",
        ) from error


def _hint(program: TorchProgram, size: Any) -> int:
    example = program.hints.get(str(size)) if isinstance(size, Formula) else size
    if not isinstance(example, int) or not 0 <= example < _LARGEST:
        raise UserError(f"the archive gives no example of the size {str(size)[:80]}")
    return example


def _open_axes(program: TorchProgram, meta: Tensor) -> dict[int, Any]:
    opened = {n: size for n, size in enumerate(meta.shape) if isinstance(size, Formula)}
    ranges = {n: program.ranges.get(str(size), (None, None)) for n, size in opened.items()}
    return {n: torch.export.Dim.AUTO(min=low, max=high) for n, (low, high) in ranges.items()}


class _Replay(torch.nn.Module):  # type: ignore[misc]  # torch is Any to the checker
    """A module that runs the program's calls on tensors that its caller passes by name.

    `given` maps the names of these tensors to their descriptions. The program's parameters and
    buffers are buffers of this module, and `names` maps their names in the module to their names in
    the program.
    """

    def __init__(self, program: TorchProgram) -> None:
        super().__init__()
        inputs = dict(program.block.inputs)
        self._program = program
        self._fixed: dict[str, Any] = {}
        self._owned: dict[str, str] = {}
        self.given: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}
        for name, meta in inputs.items():
            owner = program.owned.get(name)
            if isinstance(owner, Fixed):
                self._fixed[name] = owner.value
            elif not isinstance(meta, Tensor):
                raise UserError(f"the input {name} is no tensor, and not fixed either")
            elif owner is None:
                self.given[name] = meta
            else:
                self._owned[name] = buffer = f"owned_{len(self.names)}"
                self.register_buffer(buffer, _example(program, meta))
                self.names[buffer] = owner.name
        kind = inspect.Parameter.KEYWORD_ONLY
        self.forward = partial(self._replayed)
        # torch.export reads input names from the signature; `partial` declares no field for it.
        self.forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind) for name in self.given]
        )

    def _replayed(self, **tensors: Any) -> list[Any]:
        block, updates = self._program.block, self._program.updates
        owned = {name: getattr(self, buffer) for name, buffer in self._owned.items()}
        values = self._fixed | owned | tensors
        results = run_block(block, [values[name] for name, _ in block.inputs])
        for name, new in zip(updates, results, strict=False):
            values[name].copy_(new)
        return results[len(updates) :]


def run_block(
    block: CallBlock,
    inputs: Sequence[Any],
    call_of: Callable[[Call, Mapping[str, Any]], Any] | None = None,
) -> list[Any]:
    """Runs a block's calls with torch, or with `call_of` if it is given, and returns the block's
    outputs.

    `inputs` are the values of the block's inputs.
    """
    values = dict(zip_equal((name for name, _ in block.inputs), inputs))

    def resolved(value: Any) -> Any:
        match value:
            case Ref(name):
                return values[name]
            case list():
                return [resolved(item) for item in value]
            case ElementType(name):
                return getattr(torch, name)
            case Opaque(text):
                return _CPU if text.startswith("device ") else _FORMATS.get(text)
            case CallBlock():
                return lambda *inputs: tuple(run_block(value, inputs))
        return value

    for call in block.calls:
        with refusing(f"torch refuses {call.target}", call.location):
            arguments = {n: resolved(v) for n, v in call.arguments.items()}
            values[call.name] = (call_of or called)(call, arguments)
    return [resolved(value) for value in block.outputs]


def called(call: Call, arguments: Mapping[str, Any]) -> Any:
    """Returns torch's result of a call."""
    values = list(arguments.values())
    if call.target == "higher_order.wrap_with_autocast" and values[2]:
        raise ValueError("it casts automatically: export the model without autocast")
    if call.target in REGIONS:
        return getattr(torch.ops.higher_order, call.target.rpartition(".")[2])(*values)
    function = _ARITHMETIC.get(call.target)
    if function is None:
        return (_FOREIGN.get(call.target) or _operator(call.target))(**arguments)
    if function is not operator.getitem and not all(map(_is_number, values)):
        raise TypeError("it computes with what is no number")
    return function(*values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat | torch.SymBool)
