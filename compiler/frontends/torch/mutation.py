"""Updates in place of a program, taken out: every call gives a new value.

    %y = view(%x)                 %y = view(%x)
    add_(%y, 1)          ->       %a = add(%y, 1)
    mul(%x, %y)                   %b = view(%a, the shape of %x)
                                  mul(%b, %a)

Archives hold programs as they were traced.  A value that shares memory with another is a view of
it; an update of either becomes a new value of the memory's first owner, of which views that are
read later are taken again.  Inputs that were updated are named in the program's `updates`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tcc.errors import UserError
from tcc.frontends.torch.calls import Block, Call, Known, Program, Ref, Tensor
from tcc.frontends.torch.defaults import DEFAULTS

_SHAPES = frozenset(
    f"aten.{name}"
    for name in "view _unsafe_view view_as unsqueeze squeeze unflatten _reshape_alias".split()
)
_SAME = frozenset(
    f"aten.{name}"
    for name in "detach alias lift_fresh lift positive resolve_conj resolve_neg".split()
)
_SWAPS = frozenset(
    f"aten.{name}" for name in "transpose t mT numpy_T swapaxes swapdims".split()
)  # their own inverses
_TURNS = _SWAPS | {"aten.permute", "aten.movedim", "aten.moveaxis"}
_PARTS = {
    f"aten.{name}": f"aten.{name}_scatter.default" for name in ("select", "slice", "diagonal")
}
# What always gives a view, of which an update can be put through.
VIEWS = _SHAPES | _SAME | _TURNS | frozenset(_PARTS)
_SPLITS = frozenset(
    f"aten.{name}" for name in "split split_with_sizes chunk tensor_split unbind".split()
)
# What gives a view or a copy, or views of which an update cannot be undone.
DOUBTFUL = _SPLITS | frozenset(
    f"aten.{name}"
    for name in (
        "reshape flatten contiguous to type_as dropout feature_dropout alpha_dropout "
        "feature_alpha_dropout expand expand_as broadcast_to broadcast_tensors meshgrid atleast_1d "
        "atleast_2d atleast_3d narrow unfold as_strided real view_as_real view_as_complex mH "
        "adjoint matrix_H ravel reshape_as"
    ).split()
)
# Updates of a tensor's shape and strides: what they give is a view of what was there.
_RESHAPES = frozenset(
    f"aten.{name}_" for name in "t transpose swapaxes swapdims squeeze unsqueeze".split()
)
_OVERLOADS = {"aten.transpose_": "int"}
# Python's operators that assign, and those whose result they take over.
_ASSIGNING = {
    f"aten.__i{name}__": f"aten.__{name}__" for name in "and or xor lshift rshift".split()
}
_HINT = "save what program.run_decompositions() gives"


def functional(program: Program) -> Program:
    """The program without updates in place.

    Raises `UserError` where one of them reaches memory that cannot be followed.
    """
    block, updated = _Rewriter(program.block).rewritten()
    known = [name for name in updated if name not in program.updates]
    if not known:
        return replace(program, block=block)
    outputs = (*updated.values(), *block.outputs[len(program.updates) :])
    if program.updates:
        raise UserError("the program updates inputs in two ways", hint=_HINT)
    return replace(program, block=replace(block, outputs=outputs), updates=tuple(known))


@dataclass(frozen=True, slots=True)
class _View:
    """A name for memory: `step` made it of `parent`; a first owner has neither.  An update gives
    its operand a second name, without a step."""

    root: str
    parent: str = ""
    step: Call | None = None


class _Rewriter:
    """Rewrites one block."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._calls: list[Call] = []
        self._known: dict[str, Known] = dict(block.inputs)
        self._views = {name: _View(name) for name, _ in block.inputs}
        self._now = {name: (0, name) for name in self._views}  # version and value of an owner
        self._held = dict(self._now)  # of each name, for which version of its owner
        self._made: dict[str, Call] = {}
        self._kin: dict[str, set[str]] = {}  # owners that may share memory
        self._last = _last_reads(block)

    def rewritten(self) -> tuple[Block, dict[str, Ref]]:
        """The block, and new values of inputs that it updates."""
        for number, call in enumerate(self._block.calls):
            self._known[call.name] = call.result
            packet, _, overload = call.target.rpartition(".")
            if packet in _RESHAPES:
                target = f"{packet[:-1]}.{_OVERLOADS.get(packet, overload)}"
                self._plain(replace(call, target=target))
            elif _is_update(call):
                self._update(call, number)
            else:
                self._plain(call)
        outputs = tuple(map(self._resolved, self._block.outputs))
        changed = {
            name: Ref(self._now[name][1]) for name, _ in self._block.inputs if self._now[name][0]
        }
        return replace(self._block, calls=tuple(self._calls), outputs=outputs), changed

    # ---- calls that update nothing

    def _plain(self, call: Call) -> None:
        self._emit(replace(call, arguments=self._arguments(call)))
        self._made[call.name] = call
        self._own(call.name)
        step = self._step(call)
        if step is not None and (source := _source(step)) in self._views:
            self._views[call.name] = _View(self._views[source].root, source, step)
            version = self._now[self._views[source].root][0]
            self._held[call.name] = (version, call.name)
            return
        packet, sources = call.target.rpartition(".")[0], set(_names([_first(call)]))
        for source in sorted(sources & set(self._views)):
            other = self._views[source].root
            if packet in DOUBTFUL:
                self._relate(call.name, other)
            if packet in DOUBTFUL or call.target == "_operator.getitem":
                for kin in sorted(self._kin.get(other, ())):  # parts do not overlap
                    self._relate(call.name, kin)

    def _step(self, call: Call) -> Call | None:
        """The call that takes a view, where a call gives one that an update can be put through."""
        if not isinstance(call.result, Tensor):
            return None
        packet = call.target.rpartition(".")[0]
        if call.target == "_operator.getitem":
            return _part(call, self._made.get(_source(call)), self._known)
        if packet == "aten.narrow":
            start, length = (call.arguments.get(name) for name in ("start", "length"))
            if isinstance(start, int) and isinstance(length, int):
                axis, end = call.arguments.get("dim", 0), start + length
                end = end if end or start >= 0 else sys.maxsize  # 0 is not behind the last one
                return _slice_of(call, _source(call), axis, start, end)
        return call if packet in VIEWS else None

    def _relate(self, name: str, other: str) -> None:
        """Two owners may share memory; results of calls that give parts stand for none."""
        self._kin.setdefault(name, set()).add(other)
        if isinstance(self._known[name], Tensor):
            self._kin.setdefault(other, set()).add(name)

    def _own(self, name: str) -> None:
        self._views[name] = _View(name)
        self._now[name] = self._held[name] = (0, name)

    def _arguments(self, call: Call) -> dict[str, Any]:
        return {name: self._resolved(value) for name, value in call.arguments.items()}

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(self._value(value.name))
        if isinstance(value, list):
            return [self._resolved(item) for item in value]
        if isinstance(value, Block):
            block, changed = _Rewriter(value).rewritten()
            if changed:
                raise UserError("a branch or loop updates what it is given", hint=_HINT)
            return block
        return value

    def _value(self, name: str) -> str:
        """The value that a name stands for now; a view of changed memory is taken again."""
        if name not in self._views:
            return name
        view = self._views[name]
        version, current = self._now[view.root]
        if self._held[name][0] != version:
            if view.parent:
                current = self._value(view.parent)
            if view.step is not None:
                given = self._arguments(view.step)
                taken = replace(view.step, name=f"{name}/{version}", arguments=given)
                current = self._emit(taken)
            self._held[name] = (version, current)
        return self._held[name][1]

    def _emit(self, call: Call) -> str:
        self._calls.append(call)
        return call.name

    # ---- updates

    def _update(self, call: Call, number: int) -> None:
        name = _source(call)
        if name not in self._views:
            raise UserError("an update of no tensor", where=call.location, hint=_HINT)
        root = self._views[name].root
        self._check_kin(root, call, number)
        packet, _, overload = call.target.rpartition(".")
        target = f"{_ASSIGNING.get(packet, packet[:-1])}.{overload}"
        given = {**DEFAULTS.get(target, {}), **self._arguments(call)}
        ordered = {key: given[key] for key in dict.fromkeys((*call.arguments, *given))}
        new = self._emit(replace(call, target=target, arguments=ordered))
        self._store(name, new)
        self._views[call.name] = _View(root, name)
        version = self._now[root][0]
        self._held[call.name] = self._held[name] = (version, new)

    def _check_kin(self, root: str, call: Call, number: int) -> None:
        """Refuses an update that what may share the memory would show, too."""
        for other in sorted(self._kin.get(root, set()) - {root}):
            owned = any(name == other for name, _ in self._block.inputs)
            names = [n for n, view in self._views.items() if view.root == other]
            if owned or any(self._last.get(name, -1) > number for name in names):
                raise UserError(
                    "an update in place cannot be followed",
                    where=call.location,
                    why=f"it may change {other}, which the program reads later",
                    hint=_HINT,
                )

    def _store(self, name: str, new: str) -> None:
        """Makes `new` the value of a name, and so of the memory it is a view of."""
        view = self._views[name]
        if view.step is not None:
            new = self._put(view.step, self._value(view.parent), new)
        if view.parent:
            self._store(view.parent, new)
        else:
            self._now[name] = (self._now[name][0] + 1, new)
            self._held[name] = self._now[name]

    def _put(self, step: Call, parent: str, new: str) -> str:
        """The value of which `step` takes `new`, elsewhere as `parent`."""
        packet = step.target.rpartition(".")[0]
        known = self._known[_source(step)]
        if packet in _SAME:
            return new
        own = dict(list(step.arguments.items())[1:])
        if packet in _PARTS:
            target = _PARTS[packet]
            given = {"self": Ref(parent), "src": Ref(new), **self._resolved_all(own)}
        elif packet in _TURNS:
            target, given = step.target, {"self": Ref(new), **_turned_back(packet, own, known)}
        else:
            shape = known.shape if isinstance(known, Tensor) else ()
            if not all(isinstance(size, int) for size in shape):
                raise UserError(
                    "an update in place cannot be followed",
                    where=step.location,
                    why="it reaches memory of an open size through another shape",
                    hint=_HINT,
                )
            target, given = "aten.reshape.default", {"self": Ref(new), "shape": list(shape)}
        call = Call(f"{new}/{_source(step)}", target, given, known, step.path)
        return self._emit(call)

    def _resolved_all(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._resolved(value) for name, value in arguments.items()}


def _turned_back(packet: str, own: Mapping[str, Any], known: Known) -> dict[str, Any]:
    """The arguments of the inverse of a call that only turns axes."""
    if packet in _SWAPS:
        return dict(own)
    if packet != "aten.permute":
        return dict(zip(own, reversed([*own.values()]), strict=True))
    dims = [dim % len(known.shape) for dim in next(iter(own.values()))]
    return {"dims": [dims.index(axis) for axis in range(len(dims))]}


def _part(call: Call, split: Call | None, known: Mapping[str, Known]) -> Call | None:
    """The select or slice that takes what `call` takes out of the results of a split."""
    if split is None or split.target.rpartition(".")[0] not in _SPLITS:
        return None
    name, (_, number) = _source(split), call.arguments.values()
    whole, parts = known.get(name), split.result
    if not isinstance(whole, Tensor) or not isinstance(parts, tuple):
        return None
    axis = split.arguments.get("dim", 0)
    if axis not in range(-len(whole.shape), len(whole.shape)):
        return None
    if split.target.startswith("aten.unbind"):
        given = {"self": Ref(name), "dim": axis, "index": number}
        return replace(call, target="aten.select.int", arguments=given)
    taken = parts[: number + 1]
    if not all(isinstance(p, Tensor) and len(p.shape) == len(whole.shape) for p in taken):
        return None
    sizes = [part.shape[axis] for part in taken]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return _slice_of(call, name, axis, sum(sizes[:number]), sum(sizes))


def _slice_of(call: Call, name: str, axis: int, start: int, end: int) -> Call:
    """A slice in the place of `call`."""
    given = {"self": Ref(name), "dim": axis, "start": start, "end": end, "step": 1}
    return replace(call, target="aten.slice.Tensor", arguments=given)


def _source(call: Call) -> str:
    """The name of the first argument, '' where it is no value."""
    first = _first(call)
    return first.name if isinstance(first, Ref) else ""


def _first(call: Call) -> Any:
    return next(iter(call.arguments.values()), None)


def _is_update(call: Call) -> bool:
    packet = call.target.rpartition(".")[0]
    named = packet.startswith("aten.") and packet.endswith("_") and not packet.endswith("__")
    return named or packet in _ASSIGNING


def _last_reads(block: Block) -> dict[str, int]:
    """The number of the last call that reads each name; of results it is beyond all."""
    last: dict[str, int] = {}
    for number, call in enumerate(block.calls):
        last.update((name, number) for name in _names(list(call.arguments.values())))
    last.update((name, len(block.calls)) for name in _names(block.outputs))
    return last


def _names(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, list | tuple):
            yield from _names(value)
