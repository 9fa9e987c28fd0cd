"""Finds the calls of a program that cannot be imported, and lists them in one error."""

from collections.abc import Callable, Iterator, Mapping

from tcc.errors import UserError
from tcc.frontends.torch.calls import Call, CallBlock, Known, Number
from tcc.frontends.torch.convert.complex import complex_converter_of, has_complex
from tcc.frontends.torch.converters import converter_of
from tcc.frontends.torch.regions import REGIONS

_IGNORED = frozenset(
    {
        "aten._assert_tensor_metadata.default",
        "aten._assert_async.msg",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
_OF_SIZES = ("aten.sym_size.", "aten.sym_numel.", "aten.sym_stride.", "aten.sym_storage_offset.")
_OF_PYTHON = ("_operator.", "builtins.", "math.", "torch.sym_", "torch._sym_")
GETITEM = "_operator.getitem"
ASSERT_SCALAR = "aten._assert_scalar.default"
_NAMES_SHOWN = 3


def has_converter(target: str) -> bool:
    """True if the table has an operator, for real tensors or for complex ones."""
    return converter_of(target) is not None or complex_converter_of(target) is not None


def is_ignored(target: str) -> bool:
    """True if a call only states something that the export has proved."""
    return target in _IGNORED


def is_arithmetic(call: Call) -> bool:
    """True if a call computes a number from sizes.

    Such a call needs no converter: the program also has the number as an expression.
    """
    is_number = isinstance(call.result, Number | int | float)
    return is_number and call.target.startswith((*_OF_SIZES, *_OF_PYTHON))


def missing_calls(program: CallBlock) -> list[Call]:
    """Returns the calls that cannot be imported, those of inner blocks included."""
    return [call for call, metas in _calls(program) if not _is_supported(call, metas)]


def check_calls(
    program: CallBlock,
    hint: str = "tcc ops lists what is supported",
    accepts: Callable[[Call], bool] = lambda call: False,
) -> None:
    """Raises one `UserError` that lists every unsupported operator.

    An operator is unsupported if tcc lacks it and `accepts` refuses its call.
    """
    missing: dict[str, list[str]] = {}
    for call in missing_calls(program):
        if not accepts(call):
            missing.setdefault(call.target, []).append(call.location)
    if missing:
        rows = sorted(missing.items(), key=lambda row: (-len(row[1]), row[0]))
        raise UserError(
            f"{len(rows)} operators of the program are not supported"
            if len(rows) > 1
            else "an operator of the program is not supported",
            why="\n" + "\n".join(_row(*row) for row in rows),
            hint=hint,
        )


def _row(operator: str, places: list[str]) -> str:
    locations = ", ".join(places[:_NAMES_SHOWN]) + ", ..." * (len(places) > _NAMES_SHOWN)
    return f"    {operator}  {len(places)}  {locations}"


def _is_supported(call: Call, metas: Mapping[str, Known]) -> bool:
    target = call.target
    if target in (GETITEM, ASSERT_SCALAR) or is_ignored(target) or is_arithmetic(call):
        return True
    if has_complex(call, metas):
        return complex_converter_of(target) is not None
    return target in REGIONS or converter_of(target) is not None


def _calls(block: CallBlock) -> Iterator[tuple[Call, Mapping[str, Known]]]:
    """Yields the calls of a block and of its inner blocks.

    Each call comes with the descriptions of the names that are defined before it.
    """
    metas = dict(block.inputs)
    for call in block.calls:
        metas[call.name] = call.result
        yield call, metas
        for argument in call.arguments.values():
            if isinstance(argument, CallBlock):
                yield from _calls(argument)
