"""Makes an output update an input's memory in place, for `--state PAST=PRESENT`.

    graph(%past : f32[1,8,256,64]) { ... return %y, %present }        ... alias %present = %past ...

    graph(%past : f32[p,64], %new : f32[1,64]) {       graph(%past : f32[p + 1,64], %new) {
      %present = concat(%past, %new)                     %present = update_slice(%past, %new)
      return %present }                                  return %present } alias %present = %past

Requires nothing.  Establishes an alias for each pair: the run writes the output to the array that
the caller passed as the input.  Memory that is updated in place cannot grow, so input and output
have the same type.  If the model's output is the input with rows appended, the input gets the
output's type.  The caller then passes an array with the old rows at its front, and room for the new
rows.  On request, such a state is stored in a narrower type (`--state-type`): new rows are rounded
to it, and readers convert its elements back.  Rows of bytes have scales, which are a further state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tcc.errors import UserError
from tcc.frozen import frozen
from tcc.ir.graph import Graph, GraphBuilder, Node, Value, captures, types_of, walk_values
from tcc.ir.graph.rewrite import substituted, without_dead
from tcc.ir.index import bounds, const, nonnegative
from tcc.ir.types import DTYPES, F32, I8, DType, TensorType
from tcc.ops import OPS
from tcc.ops.algebra.levels import LEAST
from tcc.ops.algebra.movement import ConcatAttrs, SliceAttrs
from tcc.ops.algebra.unary import CastAttrs
from tcc.ops.data.indexing import UpdateSliceAttrs
from tcc.ops.shapes import replaced
from tcc.passes.layout.assign import Placed, ProgramStep
from tcc.passes.layout.state_room import appends
from tcc.zipped import zip_equal

# The end of messages about states that cannot be empty.
EMPTY_HINT = (
    "; for a run without earlier rows, export the model with a size whose range begins at 0, as "
    "that of torch.export.Dim('past') does (not Dim.AUTO, Dim.DYNAMIC or min=1)"
)
_UPDATES = ("scatter_elements", "scatter_nd", "scatter_rows", "update_slice")


@frozen
class NarrowStates:
    """The states of an artifact, as pairs of an input and an output, and the type of `--state-type`
    in which it stores them."""

    pairs: Sequence[tuple[str, str]]
    dtype: str


def with_states(graph: Graph, states: NarrowStates) -> Graph:
    """Returns `graph` with an artifact's states; raises UserError as `bind_states` does."""
    return bind_states(graph, states.pairs, DTYPES[states.dtype])


def bind_states(
    graph: Graph, pairs: Iterable[tuple[str, str]], dtype: DType | None = None
) -> Graph:
    """Returns `graph` with an alias for each pair (input name, output name).

    An input to which the model appends rows gets the type of the output.  Both have the element
    type `dtype`, if that is narrower than their floats.  Raises `UserError` for an unknown name,
    for a name that is used twice, for types that differ in another way, and for a `dtype` that no
    state has then.
    """
    changed = False
    for past, present in pairs:
        source = _named(graph.inputs, past, f"{past}={present}", "input")
        result = _named(graph.outputs, present, f"{past}={present}", "output")
        _check_free(result, source, graph.aliases)
        _check_types(result, source)
        if result.type != source.type:
            graph, source = _with_room(graph, source, result)
            changed = True
        graph = replace(graph, aliases=(*graph.aliases, (result, source)))
    if dtype is not None:
        for result, room, update in appends(graph):
            is_wider = room.dtype.is_float and room.dtype.bits > dtype.bits
            if is_wider and (room.rank > 1 or dtype.is_float):
                graph, changed = _narrowed(graph, room, result, update, dtype), True
    if dtype is not None and all(past.dtype is not dtype for _, past in graph.aliases):
        name = "int8" if dtype is I8 else dtype.name
        raise UserError(
            f"no state can be stored as {name}",
            where=f"--state-type {name}",
            why="the model appends rows of wider floats to none of the states",
            hint="name caches to which a run appends rows with --state, or leave --state-type out",
        )
    return without_dead(graph) if changed else graph


def appends_entry(graph: Graph) -> dict[str, Any]:
    """Returns the manifest's entry for inputs to which a run appends rows, such as caches.

    For each input the entry has its name, the axis that grows, and the number of appended rows; the
    number is a text if it depends on symbolic sizes.
    """
    entries = []
    for _, past, node in appends(graph):
        axis = node.attrs.axis
        rows = past.shape[axis] - node.attrs.start
        number = rows.key if rows.terms else rows.const
        entries.append({"input": past.name, "axis": axis, "rows": number})
    return {"appends": entries}


def empty_state_warnings(graph: Graph) -> tuple[str, ...]:
    """Returns a sentence for the user if a run cannot begin with empty states.

    The number of rows that precede a run is then symbolic, and its range begins above 0.
    """
    starts = {past.name: node.attrs.start for _, past, node in appends(graph)}
    names = [name for name, start in starts.items() if start.terms and (bounds(start)[0] or 0) > 0]
    if not names:
        return ()
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    rows = bounds(starts[names[0]])[0]
    return (f"state {names[0]}{more} cannot be empty: it has at least {rows} rows{EMPTY_HINT}",)


def _named(values: Sequence[Value], name: str, pair: str, kind: str) -> Value:
    for value in values:
        if value.name == name:
            return value
    raise UserError(
        f"the model has no {kind} {name!r}",
        where=f"--state {pair}",
        hint=f"its {kind}s are {', '.join(v.name for v in values)}",
    )


def _check_free(result: Value, source: Value, aliases: Sequence[tuple[Value, Value]]) -> None:
    for other, other_source in aliases:
        if other is result or other_source is source:
            raise UserError(
                "a state is given twice",
                where=f"--state {source.name}={result.name}",
                why=f"{other.name} updates {other_source.name} already",
                hint="give each input and each output of a state once; write patterns of --state "
                "that match different names",
            )


def _check_types(result: Value, source: Value) -> None:
    if source.dtype.is_handle:
        raise UserError(
            "strings, sequences and optionals cannot be updated in place",
            where=f"--state {source.name}={result.name}",
            hint="leave this state out: pass the value as an input and take it as an output",
        )
    if result.dtype is source.dtype and result.rank == source.rank:
        return
    raise UserError(
        "a state changes its type",
        where=f"--state {source.name}={result.name}",
        why=f"the input is {source.type!r}, the output {result.type!r}",
        hint="a state keeps its element type and its number of axes: pair the input with the "
        "output that replaces it, or export the model with equal types",
    )


# ---- states to which rows are appended ----------------------------------------------------------


def _with_room(graph: Graph, past: Value, present: Value) -> tuple[Graph, Value]:
    """Returns `graph` with a new input in place of `past`, and the new input.

    It has the type of `present`, and so room for the rows that are appended.
    """
    concat = _appending(graph, past, present)
    axis, size = concat.attrs.axis, past.shape
    room = Value(past.name, present.type)
    front = Value(_unused(graph, f"{past.name}.front"), past.type)
    front_attrs = SliceAttrs((const(0),) * len(size), (1,) * len(size), size)
    nodes = [Node(OPS["slice"], front_attrs, (room,), (front,), concat.loc)]
    reading = substituted(graph, {past: front})
    for node in reading.nodes:
        if present not in node.outputs:
            nodes.append(node)
            continue
        new = node.inputs[1]
        if len(node.inputs) > 2:
            new_rows = _new_rows(graph, node)
            nodes.append(new_rows)
            new = new_rows.outputs[0]
        attrs = UpdateSliceAttrs(axis, size[axis])
        nodes.append(Node(OPS["update_slice"], attrs, (room, new), (present,), node.loc))
    inputs = tuple(room if v is past else v for v in graph.inputs)
    return replace(reading, inputs=inputs, nodes=tuple(nodes)), room


def _narrowed(graph: Graph, past: Value, present: Value, update: Node, dtype: DType) -> Graph:
    """Returns `graph` with a state that stores elements of type `dtype`.

        %present = update_slice(%past, %new)
          ->  %present = update_slice(%past : bf16, bf16(%new));  readers: f32(%present)
          ->  %scale = max(max(|%new|), least) / 127
              %present = update_slice(%past : i8, i8(round(%new / %scale)))
              %present.scales = update_slice(%past.scales, %scale);
              readers: f32(%present) * %present.scales

    Bytes have a scale for each row, which lies along the last axis that does not grow.  A NaN or an
    infinity makes its whole row NaN.  Slices of the past have whole rows.
    """
    b = GraphBuilder(graph.name, store=graph.store)
    for value in walk_values(graph):
        b.fresh(value.name)

    def add(name: str, *operands: Value, attrs: Any = None) -> Value:
        hint = f"{present.name}.{name}"
        return b.add(OPS[name], operands, attrs, loc=update.loc, names=[hint])[0]

    def cast(value: Value, to: DType) -> Value:
        return value if value.dtype is to else add("cast", value, attrs=CastAttrs(to))

    def read(values: Sequence[Value]) -> Value:
        elements = [cast(v, F32 if dtype is I8 else past.dtype) for v in values]
        return cast(add("mul", *elements), past.dtype) if dtype is I8 else elements[0]

    row = past.rank - (2 if update.attrs.axis == past.rank - 1 else 1)
    rooms = [Value(past.name, replace(past.type, dtype=dtype))]
    if dtype is I8:
        form = TensorType(F32, replaced(past.shape, row, const(1)))
        rooms.append(Value(b.fresh(f"{past.name}.scales"), form))
    reads: dict[Value, Value] = {}
    results: list[Value] = []
    for node in graph.nodes:
        if node.op.name == "slice" and node.inputs[0] is past:
            sizes = (replaced(node.attrs.sizes, row, room.shape[row]) for room in rooms)
            forms = [replace(node.attrs, sizes=part) for part in sizes]
            reads[node.result] = read(
                [add("slice", room, attrs=form) for room, form in zip_equal(rooms, forms)]
            )
        elif present in node.outputs:
            new = node.inputs[1]
            assert new is not None
            parts = [cast(new, dtype)] if dtype is not I8 else _levels(b, cast(new, F32), row, add)
            names = [present.name, b.fresh(f"{present.name}.scales")]
            for name, room, part in zip(names, rooms, parts, strict=False):
                results.append(Value(name, room.type))
                b.append(replace(node, inputs=(room, part), outputs=(results[-1],)))
            reads[present] = read(results)
        else:
            b.append(node)
    new_graph = b.finish(())
    constants = {**graph.constants, **new_graph.constants}
    inputs = (*(rooms[0] if v is past else v for v in graph.inputs), *rooms[1:])
    aliases = [pair for pair in graph.aliases if pair[1] is not past]
    narrow = replace(
        graph, inputs=inputs, nodes=new_graph.nodes, constants=constants,
        aliases=(*aliases, *zip_equal(results, rooms)),
    )  # fmt: skip
    ports = {**reads, present: results[0]}
    outputs = (*(ports.get(v, v) for v in graph.outputs), *results[1:])
    return replace(substituted(narrow, reads), outputs=outputs)


def _levels(b: GraphBuilder, rows: Value, axis: int, add: Callable[..., Value]) -> list[Value]:
    """Returns the bytes (i8) of rows (f32) along `axis`, and the scale (f32) of each row."""
    end = b.constant(np.array(127, np.float32))
    largest = add("reduce_max", add("abs", rows), attrs=OPS["reduce_max"].attrs((axis,), True))
    largest = add("max", largest, b.constant(np.array(LEAST, np.float32)))
    levels = add("round", add("mul", rows, add("div", end, largest)))
    return [add("cast", levels, attrs=CastAttrs(I8)), add("div", largest, end)]


def _appending(graph: Graph, past: Value, present: Value) -> Node:
    """Returns the concat that computes `present` by appending rows to `past`.

    Raises UserError if there is none.
    """
    node = graph.producers().get(present)
    if node is not None and node.op.name == "concat" and node.inputs[0] is past:
        pairs = zip_equal(past.shape, present.shape)
        if all(a == b for axis, (a, b) in enumerate(pairs) if axis != node.attrs.axis):
            return node
    raise UserError(
        "a state must keep its size",
        where=f"--state {past.name}={present.name}",
        why=f"the input is {past.type!r}, the output {present.type!r}: memory that is updated in "
        f"place cannot grow, unless {present.name} is a Concat of {past.name} and of rows behind "
        "it, with nothing in between, and has its other sizes",
        hint="export the model with such a Concat, or with a cache of fixed capacity that it "
        "updates at a position (ScatterND, ScatterElements or Where), or fix equal sizes with "
        "--input",
    )


def _new_rows(graph: Graph, concat: Node) -> Node:
    """Returns a node that concatenates all operands of `concat` except the first."""
    inputs = concat.inputs[1:]
    attrs = ConcatAttrs(concat.attrs.axis)
    (form,) = concat.op.infer(types_of(inputs), attrs)
    rows = Value(_unused(graph, f"{concat.result.name}.rows"), form)
    return Node(concat.op, attrs, inputs, (rows,), concat.loc)


def _unused(graph: Graph, name: str) -> str:
    names = {v.name for v in walk_values(graph)}
    while name in names:
        name += "_"
    return name


# ---- updates without a copy ----------------------------------------------------------------------


def updates_in_place(placed: Placed, value: Value, past: Value) -> bool:
    """Returns True if `value` may overwrite `past` without a copy.

    `value` must be an update of `past`, and nothing may read overwritten elements afterwards.
    """
    if past in placed.graph.outputs:
        return False
    updated = False
    for step in placed.steps:
        if step.node is not None and value in step.node.outputs:
            node = step.node
            if node.op.name not in _UPDATES or node.inputs[0] is not past:
                return False
            if past in node.inputs[1:]:
                return False
            if _readers_stay_before(node, placed.graph.users()):
                return True
            updated = True
        elif updated and past in _reads(step):
            return False
    return updated


def _readers_stay_before(update: Node, users: Mapping[Value, Sequence[Node]]) -> bool:
    """Returns True if all other readers of the updated value read only rows before the update."""
    past = update.inputs[0]
    if update.op.name != "update_slice" or past is None:
        return False
    axis, start = update.attrs.axis, update.attrs.start
    return all(
        reader.op.name == "slice"
        and reader.attrs.steps[axis] == 1
        and nonnegative(start - reader.attrs.starts[axis] - reader.attrs.sizes[axis])
        for reader in users[past]
        if reader is not update
    )


def _reads(step: ProgramStep) -> tuple[Value | None, ...]:
    if step.kernel is not None:
        return step.kernel.operands
    return () if step.node is None else (*step.node.inputs, *captures(step.node))
