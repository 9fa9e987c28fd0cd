"""tcc reads torch archives without torch as torch itself exports them, and refuses damaged
archives."""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tcc
import torch
import torch.nn.functional as F
from tcc.errors import UserError
from tcc.frontends import load_model
from tcc.frontends.torch.calls import CallBlock, Fixed, Formula, Ref, Tensor, TorchProgram
from tcc.frontends.torch.convert.complex import complex_converter_of
from tcc.frontends.torch.converters import converter_of, is_writing
from tcc.frontends.torch.formulas import read_formula
from tcc.frontends.torch.importer import import_program
from tcc.ir.graph.evaluate import evaluate_graph
from tcc.ir.types import F32

from tests.lib.fuzz.hostile_archives import members, packed, program, tensor

from . import torch_samples as samples

pytestmark = pytest.mark.xdist_group("torch")


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch itself, at export
        logging.disable(logging.WARNING)
        torch.manual_seed(0)
        yield
        logging.disable(logging.NOTSET)


def saved(path: Path, module: Any, *inputs: Any, shapes: Any = None) -> Path:
    exported = samples.export(copy.deepcopy(module), *inputs, shapes=shapes)
    torch.export.save(exported, path / "m.pt2")
    return path / "m.pt2"


def agree(path: Path, module: Any, *inputs: Any) -> Any:
    """Fails unless the archive's graph gives the results of the module."""
    module = module.eval() if isinstance(module, torch.nn.Module) else samples.Call(module)
    graph = load_model(saved(path, module, *inputs))
    buffers = {name: buffer.numpy().copy() for name, buffer in module.named_buffers()}
    states = {v.name: buffers[v.name] for v in graph.inputs if v.name in buffers}
    input_names = [v.name for v in graph.inputs if v.name not in buffers]
    outputs = evaluate_graph(
        graph, states | {n: x.numpy().copy() for n, x in zip(input_names, inputs, strict=True)}
    )
    references = module(*(x.clone() for x in inputs))
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(references) if leaf is not None]
    for have, reference in zip(outputs.values(), leaves, strict=False):
        torch.testing.assert_close(
            torch.as_tensor(have), torch.as_tensor(reference), rtol=1e-5, atol=1e-5
        )
    assert len(outputs) >= len(leaves)
    return outputs


# ---- programs as torch exports them --------------------------------------------------------------


@pytest.mark.parametrize(
    "functions",
    [
        samples.POINTWISE,
        samples.MOVEMENT,
        samples.REDUCED,
        samples.COMPOSITES,
        samples.COMPLEX,
        samples.LOSSES,
    ],
    ids=["point", "move", "reduce", "composites", "complex", "losses"],
)
def test_operators(functions: Any, tmp_path: Path) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    agree(tmp_path, lambda x, y: [function(x, y) for function in functions], x, y)


def test_devices_layouts_and_memory_formats(tmp_path: Path) -> None:
    """Torch emits such operators when it traces a program again."""
    cpu, rows = torch.device("cpu"), torch.strided

    def moved(x: Any) -> Any:
        plain = torch.preserve_format
        return (
            torch.ops.aten.to.device(x, cpu, torch.bool),
            torch.ops.aten.to.device(x, cpu, torch.float64, memory_format=plain) * 2,
            torch.ops.aten.to.dtype_layout(x, dtype=torch.int64, layout=rows, device=cpu),
            x.to("cpu", torch.float16).float(),
            x.contiguous(memory_format=torch.channels_last).relu(),
            torch.empty_like(x, memory_format=plain, layout=rows, device=cpu).fill_(2),
            torch.zeros(2, 3, layout=rows, device=cpu, dtype=torch.int32).add_(1),
            x.new_full((2,), 3.0, device=cpu),
            x.clone(memory_format=torch.contiguous_format).mul_(2),
        )

    agree(tmp_path, moved, torch.randn(2, 3, 4, 5))


def test_archives_from_gpus_are_traced_on_the_cpu(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        samples.Call(lambda x: torch.ops.aten.to.device(x, torch.device("cpu"), torch.int32)),
        torch.ones(3),
    )
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    (model,) = (name for name in parts if name.endswith(".json") and "/models/" in name)
    there = parts[model].replace(
        b'"device": {"type": "cpu", "index": null}', b'"device": {"type": "cuda", "index": 1}'
    )
    assert there != parts[model]
    path.write_bytes(packed(parts | {model: there}))
    outputs = evaluate_graph(load_model(path), {"inputs_0": np.full(3, 2.5, np.float32)})
    np.testing.assert_array_equal(next(iter(outputs.values())), np.full(3, 2, np.int32))


def test_recurrent_layers(tmp_path: Path) -> None:
    agree(tmp_path, samples.Recurrent(), torch.randn(4, 5, 6))


def test_windows(tmp_path: Path) -> None:
    x, w = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    agree(tmp_path, lambda x, w: [function(x, w) for function in samples.WINDOWS], x, w)


def test_updates_in_place(tmp_path: Path) -> None:
    def updates(x: Any, y: Any) -> Any:
        z = x * 2
        flat = z.view(2, 12)
        flat.add_(1)
        part = z[:, 1:3]
        part.mul_(y[:, :2])
        transposed = z.transpose(0, 1)
        transposed.relu_()
        z[0] = 5.0
        z[:, 2].copy_(y[:, 0])
        z.unsqueeze(1).permute(2, 1, 0).sub_(0.25)
        z.T.movedim(0, 1).diagonal().add_(3)
        z.chunk(2, 1)[1].mul_(y[:, :3])
        z.unbind(1)[4].lt_(0.5)
        z.narrow(1, 2, 2).neg_()
        z.narrow(1, -2, 2).mul_(2)
        z.t_().mT.select(1, 2).add_(1)
        mask = z > 0
        mask &= z < 1
        mask[0] |= y[:, 0] > 0
        return mask, z, flat, part, transposed, torch.nn.functional.relu(z + 1, inplace=True)

    agree(tmp_path, updates, torch.randn(4, 6), torch.randn(4, 6))


def test_updates_of_narrow_integers(tmp_path: Path) -> None:
    """Torch divides in the wider type."""

    def updates(x: Any) -> Any:
        large = torch.tensor([300, -7, 301])
        return x.clone().remainder_(large), x.clone().fmod_(large), x.clone().floor_divide_(large)

    agree(tmp_path, updates, torch.tensor([1, -2, 100], dtype=torch.int8))


def test_updates_through_views_that_may_be_copies(tmp_path: Path) -> None:
    def updates(x: Any) -> Any:
        z = x * 2
        maybe = z.reshape(2, 12)
        z.add_(1)
        return maybe

    agree(tmp_path, updates, torch.randn(4, 6))


def test_operators_that_write_into_their_arguments_have_no_converter() -> None:
    """After an import, the program would continue with the old contents of these arguments."""
    operators = set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.replace("::", ".")
        target = f"{name}.{schema.overload_name or 'default'}"
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        if name.startswith("aten.") and not writes:
            assert not is_writing(target), target
        if (
            writes
            and name.startswith("aten.")
            and (converter_of(target) is not None or complex_converter_of(target) is not None)
        ):
            operators.add(target.removeprefix("aten."))
    lists = {name for name in operators if name.startswith("sort.")}
    assert operators - lists == {"_native_batch_norm_legit.default"}  # only without training


def test_results_into_given_tensors(tmp_path: Path) -> None:
    def added(x: Any) -> Any:
        return torch.add(x, 1, out=torch.zeros(4, 6))

    def largest(x: Any) -> Any:
        return list(torch.topk(x, 2, out=(torch.zeros(4, 2), torch.zeros(4, 2).long())))

    agree(tmp_path, added, torch.randn(4, 6))
    with pytest.raises(UserError, match=r"aten\.topk\.values"):
        load_model(saved(tmp_path, samples.Call(largest), torch.randn(4, 6)))


def test_blocks_without_gradients_run_and_automatic_casts_are_refused(tmp_path: Path) -> None:
    def without(x: Any) -> Any:
        with torch.enable_grad():
            activated = torch.relu_(x + 1)
        with torch.autocast("cpu", enabled=False):
            return F.celu(activated @ activated.T)

    def casting(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.celu(x @ x.T)

    agree(tmp_path, without, torch.randn(4, 6))
    with pytest.raises(UserError, match="casts automatically"):
        load_model(saved(tmp_path, samples.Call(casting), torch.randn(4, 6)))


class Cache(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 3))

    def forward(self, x: Any) -> Any:
        self.rows[2:4] = x
        self.rows[5].add_(1)
        return self.rows.sum(0)


def test_buffers_that_are_updated_are_states(tmp_path: Path) -> None:
    outputs = agree(tmp_path, Cache(), torch.ones(2, 3))
    reference = np.zeros((8, 3), np.float32)
    reference[[2, 3, 5]] = 1
    np.testing.assert_array_equal(outputs["rows.updated"], reference)
    module = tcc.compile(tmp_path / "m.pt2", jobs=1)
    rows = np.zeros((8, 3), np.float32)
    for count in (1, 2):
        module(rows, np.full((2, 3), count, np.float32))
        reference[2:4], reference[5] = count, count
        np.testing.assert_array_equal(rows, reference)


def test_branches_and_loops(tmp_path: Path) -> None:
    """torch 2.13 wrote `regions.json` from `torch_samples.regions`."""
    parts = members((Path(__file__).parent / "regions.json").read_bytes())
    zero = program_tensor(0, "lifted_tensor_0")
    parts |= {
        "m/data/constants/tensor_0": np.int64(0).tobytes(),
        "m/data/constants/model_constants_config.json": zero,
    }
    (tmp_path / "m.pt2").write_bytes(packed(parts))
    graph = load_model(tmp_path / "m.pt2")
    module = tcc.compile(tmp_path / "m.pt2", jobs=1)
    for x in (torch.rand(6, 4), -torch.rand(6, 4)):
        references = torch.utils._pytree.tree_leaves(samples.plain_regions(x))
        for outputs in (module(x), evaluate_graph(graph, {"inputs_0": x.numpy()}).values()):
            for have, reference in zip(outputs, references, strict=True):
                torch.testing.assert_close(torch.as_tensor(have), reference, rtol=1e-5, atol=1e-5)


def program_tensor(number: int, name: str) -> bytes:
    """Returns the description of a constant that is one i64."""
    meta = {"path_name": f"tensor_{number}", "is_param": False, "use_pickle": False}
    return json.dumps({"config": {name: meta | {"tensor_meta": tensor(dtype=5)}}}).encode()


def test_names_sizes_and_the_reader_without_torch(tmp_path: Path) -> None:
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=32)}}
    network = samples.Network().eval()
    path = saved(tmp_path, network, torch.randn(3, 6), shapes=shapes)
    program = samples.export(network, torch.randn(3, 6), shapes=shapes).run_decompositions()
    torch.export.save(program, tmp_path / "core.pt2")
    code = (
        "import sys, importlib.util; importlib.util.find_spec = lambda name: None\n"
        "sys.modules['torch'] = None\n"
        "import pickle; pickle.Unpickler = pickle.loads = pickle.load = None\n"
        "from tcc.errors import UserError\n"
        "from tcc.frontends import load_model\n"
        f"g = load_model({str(tmp_path / 'core.pt2')!r})\n"
        "print([v.name for v in g.outputs], g.inputs[0].type)\n"
        "arrays = [g.constant(v) for v in g.constants]\n"
        "print(all(not a.flags.owndata and not a.flags.writeable for a in arrays if a.ndim))\n"
        "try:\n"
        f"    load_model({str(path)!r})\n"
        "except UserError as error:\n"
        "    print('aten.batch_norm' in str(error), 'install torch' in str(error))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = ["['hidden', 'pair_0', 'count'] f32[x.0,6]", "True", "True True"]
    assert process.stdout.splitlines() == lines, process
    graph = load_model(path)
    assert [v.name for v in graph.outputs] == ["hidden", "pair_0", "count"]
    for size in (2, 5):
        x = torch.randn(size, 6)
        have = evaluate_graph(graph, {"x": x.numpy()})
        torch.testing.assert_close(torch.as_tensor(have["hidden"]), network(x)["hidden"])
        assert have["count"] == size * 2


def test_operators_that_are_missing_are_named_together(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        samples.Call(lambda x: torch.poisson(x) + torch.binomial(x, x)),
        torch.rand(2, 2),
    )
    with pytest.raises(UserError) as caught:
        load_model(path)
    assert "aten.poisson.default" in str(caught.value)
    assert "aten.binomial.default" in str(caught.value)
    assert "run_decompositions" in str(caught.value)


# ---- torch's core operators ----------------------------------------------------------------------

# Operators without use in a compiler of trained models, or with which Python code computes sizes.
_NOT_CONVERTED = {
    "embedding_dense_backward": "torch takes it apart",
    "native_group_norm_backward": "torch takes it apart",
    "native_layer_norm_backward": "torch takes it apart",
    "resize_": "its elements may be undefined",
    "sym_is_contiguous": "a number of the program",
    "sym_numel": "a number of the program",
    "sym_size": "a number of the program",
    "sym_stride": "a number of the program",
    "sym_storage_offset": "a number of the program",
}


def test_every_core_operator_is_converted_or_listed() -> None:
    missing = set()
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name, None) if full.startswith("aten::") else None
        function = getattr(packet, overload or "default", None)
        if function is None or overload.endswith("out") or torch.Tag.core not in function.tags:
            continue
        target = str(function)
        if converter_of(target) is None and complex_converter_of(target) is None:
            missing.add(name)
    assert missing == _NOT_CONVERTED.keys()


def test_core_programs(tmp_path: Path) -> None:
    """The test reads programs after `run_decompositions` from an archive."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.Sequential(
                torch.nn.GroupNorm(2, 4),
                torch.nn.InstanceNorm2d(4),
                torch.nn.BatchNorm2d(4),
                torch.nn.BatchNorm2d(4, track_running_stats=False),
                torch.nn.Dropout(),
            )
            self.bag = torch.nn.EmbeddingBag(20, 6, mode="mean")

        def forward(self, x: Any, words: Any) -> Any:
            return self.norms(x), self.bag(words), torch.fft.irfft(torch.fft.rfft(x) * 2)

    network = Network().eval()
    x, words = torch.randn(3, 4, 5, 6), torch.randint(0, 20, (3, 5))
    open_sizes = ({0: torch.export.Dim("n", min=2, max=9)},) * 2
    program = samples.export(network, x, words, shapes=open_sizes).run_decompositions()
    assert "aten.native_group_norm.default" in str(program.graph)
    torch.export.save(program, tmp_path / "core.pt2")
    graph = load_model(tmp_path / "core.pt2")
    for count in (3, 2):
        outputs = evaluate_graph(graph, {"x": x[:count].numpy(), "words": words[:count].numpy()})
        for have, reference in zip(
            outputs.values(), network(x[:count], words[:count]), strict=True
        ):
            torch.testing.assert_close(torch.as_tensor(have), reference, rtol=1e-5, atol=1e-5)


def test_every_result_of_native_norms(tmp_path: Path) -> None:
    def norms(x: Any, weight: Any) -> Any:
        no_stats = torch.ops.aten._native_batch_norm_legit.no_stats
        return (
            torch.native_group_norm(x, weight, None, 3, 4, 30, 2, 1e-3),
            no_stats(x, None, weight, True, 0.1, 1e-3),
            torch.native_dropout(x, 0.5, False),
        )

    agree(tmp_path, norms, torch.randn(3, 4, 5, 6), torch.randn(4))


def test_moments_of_narrow_types(tmp_path: Path) -> None:
    """Squares and sums of f16 overflow; torch computes moments in f32."""

    def moments(x: Any) -> Any:
        return (
            x.var(-1), x.std(-1, correction=0), *torch.var_mean(x, -1), *torch.std_mean(x),
            torch.linalg.vector_norm(x, 3, dim=-1), F.batch_norm(x, None, None, training=True),
            F.layer_norm(x, (64,)), F.rms_norm(x / 1e6, (64,)),
        )  # fmt: skip

    x = torch.randn(8, 64)
    for dtype, scale in ((torch.float16, 120), (torch.bfloat16, 1e4)):
        scaled = (x * scale).to(dtype)
        program = samples.export(samples.Call(moments), scaled)
        torch.export.save(program, tmp_path / "traced.pt2")
        torch.export.save(program.run_decompositions(), tmp_path / "core.pt2")
        for name in ("traced.pt2", "core.pt2"):
            graph = load_model(tmp_path / name)
            (key,) = (value.name for value in graph.inputs)
            carried = scaled.float().numpy() if dtype is torch.bfloat16 else scaled.numpy()
            outputs = evaluate_graph(graph, {key: carried})
            for have, reference in zip(outputs.values(), moments(scaled), strict=True):
                tolerance = torch.finfo(dtype).eps * 4
                torch.testing.assert_close(
                    torch.as_tensor(have).to(dtype), reference, rtol=tolerance, atol=tolerance
                )


# ---- sizes ---------------------------------------------------------------------------------------


def test_formulas() -> None:
    s = Formula("Symbol", ("s0",))
    assert read_formula("Symbol('s0', positive=True, integer=True)") == s
    assert read_formula("Add(Mul(Integer(2), Symbol('s0')), Integer(-1))") == Formula(
        "Add", (Formula("Mul", (2, s)), -1)
    )
    assert read_formula("Float('0.5', precision=53)") == 0.5
    assert read_formula("true") is True
    for bad in ("", "Integer()", "f(", "1 2", "a.b", "f(x", "'text", "Symbol(1)", "f('a')", "[1]"):
        with pytest.raises(ValueError, match=r"."):
            read_formula(bad)


def parts(x: Any, y: Any) -> Any:
    """Torch's record of this function is valid only for some sizes."""
    return x.view(2, -1, 3), int(x.shape[0] / 2) * x, y if y.shape[0] != 5 else -y


def test_sizes_that_the_program_is_not_for_are_refused(tmp_path: Path) -> None:
    auto = torch.export.Dim.AUTO
    examples = torch.randn(4, 6), torch.randn(3)
    shapes = (({0: auto}, {0: auto}),)
    program = samples.export(samples.Call(parts), *examples, shapes=shapes)
    torch.export.save(program, tmp_path / "m.pt2")
    for model in (program, tmp_path / "m.pt2"):
        graph = load_model(model)
        names = [value.name for value in graph.inputs]
        for sizes, right in (((4, 3), True), ((4, 6), True), ((6, 3), False), ((4, 5), False)):
            inputs = torch.randn(sizes[0], 6), torch.randn(sizes[1])
            arrays = {n: x.numpy() for n, x in zip(names, inputs, strict=True)}
            if right:
                for have, reference in zip(
                    evaluate_graph(graph, arrays).values(), parts(*inputs), strict=True
                ):
                    torch.testing.assert_close(torch.as_tensor(have), reference)
            else:
                with pytest.raises(UserError, match="the program asserts"):
                    evaluate_graph(graph, arrays)
    with pytest.raises(UserError, match="which does not hold"):
        load_model(program, {names[0]: (6, 6)})


def test_guards_that_are_odd_are_refused() -> None:
    block = CallBlock((("x", Tensor("float32", (4, 6))), ("n", None)), (), (Ref("x"),))
    for text, why in (
        ("L['x'].size()[0] == 4", ""),
        ("L['x'].size()[1] > 2 * L['n']", ""),
        ("L['x'].size()[0] % 2 == 1", "does not hold"),
        ("L['x'].size()[0] != 4", "does not hold"),
        ("L['x'].size()[0] == 1 or L['x'].size()[1] != 4", ""),
        ("L['x'].size()[0] == 1 or L['x'].size()[1] < 6", "does not hold"),
        ("L['x'].size()[0] > 3 and (L['x'].size()[1] <= 6 or L['n'] >= 3)", ""),
        ("L['x'].size()[0] > 3 and L['x'].size()[1] > 6", "does not hold"),
        ("L['x'].size()[0] == 1 or L['x'].size()", "no comparison"),
        ("L['y'].size()[0] == 4", "no input"),
        ("L['x'].size()[2] == 4", "no input"),
        ("L['x'].size()[0] == L['x'].size()[0].bit_length()", "no size"),
        ("__import__('os').system('false') == 0", "no size"),
        ("L['x'].size()[0]", "no comparison"),
        ("1 == 2 == 3", "no comparison"),
        ("(" * 300 + "1" + ")" * 300 + " == 1", "no expression"),
        ("1 == " + "9" * 80000, "characters"),
        (f"L['x'].size()[0] == {1 << 70}", "no size"),
        ("?", "no expression"),
        ("math.trunc(1e999 * L['x'].size()[0]) == 1", "no short fraction"),
        ("math.trunc(-0.5 * L['x'].size()[0]) == 1", "may be negative"),
        ("L['x'].size()[0] // 0 == 1", "not supported"),
        ("L['x'].size()[0] % 0 == 1", "not supported"),
        ("math.floor(1 / (L['x'].size()[0] - 4)) == 1", "not supported"),
    ):
        odd = TorchProgram(
            block,
            {"n": Fixed(2)},
            (),
            ("y",),
            {},
            {},
            (text,),
            {},
            lambda name: (np.zeros(1), F32),
            True,
        )
        if why:
            with pytest.raises(UserError, match=why):
                import_program(odd)
        else:
            import_program(odd)


# ---- damaged programs ----------------------------------------------------------------------------

ODD = (None, [], {}, -1, 1 << 70, "x", True, 0.5, [[]], {"as_int": 1}, {"as_tensor": {"name": "x"}})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    return changed


def test_every_part_of_the_json_may_be_wrong(tmp_path: Path) -> None:
    clean, path = program(), tmp_path / "m.pt2"
    accepted = 0
    for number, place in enumerate(places(clean)):
        for odd in ODD[number % 3 :: 3]:
            path.write_bytes(packed(members(json.loads(json.dumps(put(clean, place, odd))))))
            try:
                load_model(path)
            except UserError:
                continue
            accepted += 1
    assert accepted


def test_results_that_are_no_list_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    nodes = next(p for p in places(program()) if p[-1] == "nodes")
    odd = put(program(), (*nodes, 0, "outputs"), [{"as_tensors": 5}])
    path.write_bytes(packed(members(odd)))
    with pytest.raises(UserError, match="'as_tensors' is missing, or of another kind"):
        load_model(path)
