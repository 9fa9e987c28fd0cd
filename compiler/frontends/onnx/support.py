"""Finds the operators of a model that cannot be imported, and lists them all in one error."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx
from onnx import FunctionProto, NodeProto
from tcc.errors import UserError, printable
from tcc.frontends.onnx.context import Converter
from tcc.frontends.onnx.functions import (
    FunctionKey,
    function_key,
    has_typed_body,
    schema_body,
)
from tcc.frontends.onnx.reader import SourceModel, check_opsets
from tcc.frontends.onnx.rows import bound_row
from tcc.frontends.onnx.schema import domain_of, schema_of, walk
from tcc.frontends.place import placed
from tcc.frozen import entity
from tcc.zipped import zip_equal

_NAMES_SHOWN = 3
_LONGEST_CELL = 300

Converters = Mapping[tuple[str, str], Converter]

# Operators of these domains expect their tensors in an order that one machine prefers.
_MACHINE_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
_OPTIMISED = (
    "compile the original model, or have ONNX Runtime save it with its graph optimization level at "
    "ORT_ENABLE_EXTENDED or ORT_ENABLE_BASIC"
)
# Reasons to refuse operators of com.microsoft that ONNX Runtime's tools write.
REFUSED = MappingProxyType(
    {
        "ONNX Runtime itself has no kernel of it for CPUs": frozenset(
            "DecoderMaskedSelfAttention DynamicSparseAttention GatedRelativePositionBias "
            "GemmFloat8 HyperConnectionLowRankMix LongformerAttention PackedAttention "
            "PackedMultiHeadAttention PackedSparseAttentionIndexer PagedAttention "
            "QOrderedAttention QOrderedGelu QOrderedLayerNormalization QOrderedMatMul "
            "RelativePositionBias RemovePadding RestorePadding SparseAttentionIndexer "
            "SparsePagedAttention".split()
        ),
        "a loop that generates: compile the decoder that it calls, as exported": frozenset(
            "BeamSearch DecoderMaskedMultiHeadAttention GreedySearch Sampling "
            "WhisperBeamSearch".split()
        ),
        "it aligns what a network found: compile the network without it": frozenset(
            ("DynamicTimeWarping", "UnfoldTensor")
        ),
        "code of one accelerator: compile the model that it was made of": frozenset(("EPContext",)),
    }
)


@dataclass(slots=True)
class _Missing:
    """A row of the error's table: an unsupported operator, and some of its nodes."""

    operator: str
    opset: str
    reason: str
    nodes: list[str] = field(default_factory=list)
    count: int = 0


@entity
class _Survey:
    """Collects the unsupported operators of a model's nodes, bodies and called functions."""

    _functions: Mapping[FunctionKey, FunctionProto]
    _converters: Converters
    _seen: set[FunctionKey] = field(default_factory=set)
    missing: dict[tuple[str, str], _Missing] = field(default_factory=dict)

    def visit(self, nodes: Iterator[NodeProto], opsets: Mapping[str, int], path: str) -> None:
        pending = [(iter(nodes), opsets, path)]
        while pending:
            level, versions, where = pending.pop()
            for node in level:
                function = self._functions.get(function_key(node))
                if function is None:
                    self._operator(node, versions, where)
                elif function_key(node) not in self._seen:
                    self._seen.add(function_key(node))
                    with placed(function.name):
                        inner = {**versions, **check_opsets(function.opset_import)}
                    pending.append((walk(function.node), inner, f"{where}{function.name}/"))

    def _operator(self, node: NodeProto, opsets: Mapping[str, int], where: str) -> None:
        domain = domain_of(node)
        reason = self._reason(node, domain, opsets)
        if not reason:
            return
        row = self.missing.setdefault(
            (domain, node.op_type),
            _Missing(node.op_type[:80], f"{domain or 'ai.onnx'}:{opsets.get(domain, '-')}", reason),
        )
        row.count += 1
        if len(row.nodes) < _NAMES_SHOWN:
            row.nodes.append(f"{where}{node.name or '-> ' + ', '.join(node.output)}"[:80])

    def _reason(self, node: NodeProto, domain: str, opsets: Mapping[str, int]) -> str:
        version = opsets.get(domain)
        if domain in _MACHINE_DOMAINS:
            return "in the memory order of one machine"
        if version is None:
            return "the model imports no opset of this domain"
        if (domain, node.op_type) in self._converters:
            return ""
        if bound_row(domain, node.op_type, version) is not None:
            return ""
        if has_typed_body(node, version):
            return ""
        body = schema_body(node, version)
        if domain == "com.microsoft" and body is None:
            reasons = (why for why, ops in REFUSED.items() if node.op_type in ops)
            return next(reasons, "not supported")
        if body is None:
            is_defined = schema_of(node, version) is not None
            return "not supported yet" if is_defined else f"no operator of opset {version}"
        inner = {**opsets, **check_opsets(body.opset_import)}
        inside = ((n.op_type, self._reason(n, n.domain, inner)) for n in walk(body.node))
        return next((f"its body needs {op}: {why}" for op, why in inside if why), "")


def check_support(
    model: SourceModel, functions: Mapping[FunctionKey, FunctionProto], converters: Converters
) -> None:
    """Raises one `UserError` that lists every operator of the model that tcc does not have."""
    survey = _Survey(functions, converters)
    survey.visit(walk(model.proto.graph.node), model.opsets, "")
    if survey.missing:
        rows = sorted(survey.missing.values(), key=lambda r: (-r.count, r.operator))
        machine = any(domain in _MACHINE_DOMAINS for domain, _ in survey.missing)
        raise UserError(
            f"{len(rows)} operators of the model are not supported"
            if len(rows) > 1
            else "an operator of the model is not supported",
            where=model.name,
            why="\n" + _table(rows),
            hint=_OPTIMISED if machine else "tcc ops lists what is supported",
        )


def _table(rows: list[_Missing]) -> str:
    lines: list[tuple[str, ...]] = [("operator", "opset", "count", "nodes", "reason")]
    lines += [
        (
            r.operator,
            r.opset,
            str(r.count),
            ", ".join(r.nodes) + ", ..." * (r.count > len(r.nodes)),
            r.reason,
        )
        for r in rows
    ]
    lines = [tuple(printable(cell)[:_LONGEST_CELL] for cell in line) for line in lines]
    widths = [max(len(line[n]) for line in lines) for n in range(4)]
    return "\n".join(
        "    " + "  ".join([*(c.ljust(w) for c, w in zip_equal(line[:4], widths)), line[4]])
        for line in lines
    )


def operator_names(converters: Converters) -> tuple[str, ...]:
    """Returns the names of the ONNX operators that can be imported.

    A star marks an operator that ONNX defines by a body that depends on the operands' types: it can
    be imported if the operators of its body can.
    """
    newest = onnx.defs.onnx_opset_version()
    survey = _Survey({}, converters)
    star_by_name = {name: "" for domain, name in converters if not domain}
    for schema in onnx.defs.get_all_schemas():
        node = NodeProto(op_type=schema.name, domain=schema.domain)
        if schema.domain or survey._reason(node, "", {"": newest}):
            continue
        is_direct = schema.name in star_by_name or bound_row("", schema.name, newest) is not None
        star_by_name[schema.name] = "" if is_direct or not has_typed_body(node, newest) else "*"
    return tuple(sorted(name + mark for name, mark in star_by_name.items()))


def operator_opsets(names: Collection[str], converters: Converters) -> dict[str, tuple[int, ...]]:
    """Returns the opsets that define importable ONNX operators called `names`, in any domain and
    case.

    An operator that ONNX does not define itself has opset 1. Example: {"Gelu": (20,),
    "com.microsoft.Gelu": (1,)} for gelu.
    """
    survey, lower = _Survey({}, converters), {name.lower() for name in names}
    standard = {"": onnx.defs.onnx_opset_version()}
    opsets_by_key: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key, opsets = (schema.domain, schema.name), {schema.domain: schema.since_version}
        node = NodeProto(domain=schema.domain, op_type=schema.name)
        if schema.name.lower() in lower and not survey._reason(
            node, schema.domain, standard | opsets
        ):
            opsets_by_key.setdefault(key, set()).add(schema.since_version)
    for key in converters:
        if key[1].lower() in lower:
            opsets_by_key.setdefault(key, {1})
    return {
        ".".join(filter(None, key)): tuple(sorted(opsets_by_key[key]))
        for key in sorted(opsets_by_key)
    }
