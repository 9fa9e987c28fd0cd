"""Checks operators of PyTorch's own list, named on standard input: one JSON line for each."""

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
RELATIVE, ABSOLUTE = 1.3e-6, 1e-5  # torch's own for f32, the latter times the largest result


# What these give is not defined: only types and shapes are compared.
UNDEFINED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)


# Signs and turns of vectors among these results are free: as in torch's tests, what is compared is
# what the samples' `output_process_fn_grad` makes of the results.
FREE = frozenset(
    "linalg.eig linalg.eigh linalg.svd svd svd_lowrank pca_lowrank linalg.svdvals".split()
)


class Samples(torch.nn.Module):
    """An operator on its samples; `forward` takes the samples' tensors, one after another.

    Results are the tensors and numbers that the calls give; complex ones as pairs of real ones.
    """

    def __init__(self, op: Callable[..., Any], samples: Iterable[Any], free: bool = False) -> None:
        super().__init__()
        given = list(samples)
        self.op = op
        self.flat = [pytree.tree_flatten((s.input, s.args, s.kwargs)) for s in given]
        self.process = [s.output_process_fn_grad if free else _as_it_is for s in given]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(v for leaves, _ in self.flat for v in leaves if isinstance(v, torch.Tensor))

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        given, results = iter(tensors), []
        for (leaves, spec), process in zip(self.flat, self.process, strict=True):
            own = [next(given) if isinstance(v, torch.Tensor) else v for v in leaves]
            first, args, kwargs = pytree.tree_unflatten(own, spec)
            found = pytree.tree_leaves(process(self.op(first, *args, **kwargs)))
            results += [_real(v) for v in found if v is not None]
        return results


def _as_it_is(result: Any) -> Any:
    return result


def _real(value: Any) -> Any:
    complex = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.resolve_conj()) if complex else value


def model_of(op: Any) -> Samples:
    """The operator on its first samples."""
    torch.manual_seed(0)
    samples = islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES)
    return Samples(op.op, samples, op.name in FREE)


def operators() -> dict[str, Any]:
    """The operators that take f32, by name and variant."""
    found = (op for op in op_db if torch.float32 in op.dtypes)
    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in found}


def check(op: Any) -> tuple[str, str]:
    """`pass`, `drawn` (random numbers of torch's shapes and types), `refused`, `mismatch` or
    `crash`, and why."""
    model = model_of(op)
    inputs = model.tensors()
    with torch.no_grad():
        try:
            own = [t.clone() for t in inputs]
            expected = model(*own)
        except Exception as error:
            return "refused", f"eager fails: {brief(error)}"
        try:
            module = tcc.compile(model, inputs=inputs, jobs=1)
        except UserError as error:
            return "refused", brief(error)
        except TccError as error:
            return "crash", brief(error)
        named = dict(zip((port.name for port in module.inputs), inputs, strict=True))
        try:
            found, again = (
                module.run({name: t.clone() for name, t in named.items()}, seed=seed)
                for seed in range(2)
            )
        except UserError as error:  # the program asserts what does not hold
            return "refused", brief(error)
    # What the operator updates, a training batch norm's moments, are results too.
    updated = {f"{name}.updated": t for name, t in zip(named, own, strict=True)}
    results = list(found.values())
    draws = compare(results, list(again.values()), defined=True)[0] != "pass"
    expected += [updated[name] for name in found if name in updated]
    outcome, why = compare(expected, results, op.name not in UNDEFINED)
    if outcome == "mismatch" and draws:
        outcome, why = compare(expected, results, defined=False)
        outcome = "drawn" if outcome == "pass" else outcome
    return outcome, why


def compare(expected: list[Any], found: list[Any], defined: bool) -> tuple[str, str]:
    if len(expected) != len(found):
        return "mismatch", f"{len(found)} results, {len(expected)} are due"
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        want, have = torch.as_tensor(wanted), torch.as_tensor(got)
        if want.shape != have.shape or (
            want.dtype != have.dtype and isinstance(wanted, torch.Tensor)
        ):
            return "mismatch", f"result {number}: {have.dtype}{list(have.shape)}"
        if not defined:
            continue
        finite = want.double().abs()
        finite = finite[finite.isfinite()]
        scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
        try:
            torch.testing.assert_close(
                have, want, rtol=RELATIVE, atol=ABSOLUTE * scale, equal_nan=True, check_dtype=False
            )
        except AssertionError as error:
            return "mismatch", f"result {number}: {brief(error)}"
    return "pass", ""


def main() -> None:
    table = operators()
    answer(table, sorted(table), check)


if __name__ == "__main__":
    main()
