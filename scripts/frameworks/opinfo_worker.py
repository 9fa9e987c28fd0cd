"""Checks operators of PyTorch's own list; their names are read from standard input.

Writes a line of JSON for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import tcc
import torch
from answers import answer, brief
from tcc.errors import TccError, UserError
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

SAMPLES = 8
RELATIVE, ABSOLUTE = (
    1.3e-6,
    1e-5,
)  # torch's own tolerances for f32; ABSOLUTE is multiplied by the largest result if that exceeds 1


# The results of these operators are undefined, so only types and shapes are compared.
UNDEFINED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)


# Eigenvectors and singular vectors may have any sign or rotation. So, as in torch's tests, the
# samples' `output_process_fn_grad` is applied to results before they are compared.
FREE = frozenset(
    "linalg.eig linalg.eigh linalg.svd svd svd_lowrank pca_lowrank linalg.svdvals".split()
)


class Samples(torch.nn.Module):
    """A module that calls an operator once for each of its samples.

    `forward` takes the tensors of all samples in one list and returns the results of all calls in
    one list. A complex tensor becomes a real one with a last axis (real, imaginary part). `free`
    applies `output_process_fn_grad` to results that have a free sign or rotation (see FREE).
    """

    def __init__(self, op: Callable[..., Any], samples: Iterable[Any], free: bool = False) -> None:
        super().__init__()
        sample_list = list(samples)
        self.op = op
        self.flat = [pytree.tree_flatten((s.input, s.args, s.kwargs)) for s in sample_list]
        self.process = [s.output_process_fn_grad if free else _as_it_is for s in sample_list]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(v for leaves, _ in self.flat for v in leaves if isinstance(v, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        operands, results = iter(tensors), []
        for (leaves, spec), process in zip(self.flat, self.process, strict=True):
            arguments = [next(operands) if isinstance(v, torch.Tensor) else v for v in leaves]
            first, args, kwargs = pytree.tree_unflatten(arguments, spec)
            outputs = pytree.tree_leaves(process(self.op(first, *args, **kwargs)))
            results += [_real(v) for v in outputs if v is not None]
        return results


def _as_it_is(result: Any) -> Any:
    return result


def _real(value: Any) -> Any:
    complex = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.resolve_conj()) if complex else value


def model_of(op: Any) -> Samples:
    """Returns a module that runs the operator on the first SAMPLES of torch's own samples."""
    torch.manual_seed(0)
    samples = islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES)
    return Samples(op.op, samples, op.name in FREE)


def operators() -> dict[str, Any]:
    """Maps "NAME" or "NAME.VARIANT" to each of torch's operators that accept f32."""
    supported = (op for op in op_db if torch.float32 in op.dtypes)
    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in supported}


def check(op: Any) -> tuple[str, str]:
    """Returns (outcome, reason).

    The outcome is `pass`, `refused`, `mismatch`, `crash`, or `drawn`: the operator draws random
    numbers, so only shapes and types are compared with torch's.
    """
    model = model_of(op)
    inputs = model.tensors()
    with torch.no_grad():
        try:
            arguments = [t.clone() for t in inputs]
            expected = model(*arguments)
        except Exception as error:
            return "refused", f"eager fails: {brief(error)}"
        try:
            module = tcc.compile(model, inputs=inputs, jobs=1)
        except UserError as error:
            return "refused", brief(error)
        except TccError as error:
            return "crash", brief(error)
        named_inputs = dict(zip((port.name for port in module.inputs), inputs, strict=True))
        try:
            outputs, second_outputs = (
                module.run({name: t.clone() for name, t in named_inputs.items()}, seed=seed)
                for seed in range(2)
            )
        except UserError as error:  # an assertion in torch's program failed at run time
            return "refused", brief(error)
    # Tensors that the operator updates, such as the moments of a batch norm in training, are
    # results too.
    updated = {f"{name}.updated": t for name, t in zip(named_inputs, arguments, strict=True)}
    results = list(outputs.values())
    draws = compare(results, list(second_outputs.values()), defined=True)[0] != "pass"
    expected += [updated[name] for name in outputs if name in updated]
    outcome, why = compare(expected, results, op.name not in UNDEFINED)
    if outcome == "mismatch" and draws:
        outcome, why = compare(expected, results, defined=False)
        outcome = "drawn" if outcome == "pass" else outcome
    return outcome, why


def compare(expected: list[Any], results: list[Any], defined: bool) -> tuple[str, str]:
    """Returns (`pass` or `mismatch`, reason); unless `defined`, only shapes and dtypes are
    compared."""
    if len(expected) != len(results):
        return "mismatch", f"{len(results)} results, {len(expected)} are due"
    for number, (expected_result, result) in enumerate(zip(expected, results, strict=True)):
        reference, have = torch.as_tensor(expected_result), torch.as_tensor(result)
        if reference.shape != have.shape or (
            reference.dtype != have.dtype and isinstance(expected_result, torch.Tensor)
        ):
            return "mismatch", f"result {number}: {have.dtype}{list(have.shape)}"
        if not defined:
            continue
        finite = reference.double().abs()
        finite = finite[finite.isfinite()]
        scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
        try:
            torch.testing.assert_close(
                have,
                reference,
                rtol=RELATIVE,
                atol=ABSOLUTE * scale,
                equal_nan=True,
                check_dtype=False,
            )
        except AssertionError as error:
            return "mismatch", f"result {number}: {brief(error)}"
    return "pass", ""


def main() -> None:
    table = operators()
    answer(table, sorted(table), check)


if __name__ == "__main__":
    main()
