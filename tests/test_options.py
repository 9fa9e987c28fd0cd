"""Python and the command line offer the same options and choices, and refusals name them."""

from dataclasses import FrozenInstanceError, fields
from inspect import signature
from pathlib import Path
from typing import Unpack, get_args, get_type_hints

import pytest
import tcc
from tcc.errors import UserError
from tcc.options import (
    FLAGS,
    GPU_KERNELS,
    NUMERICS,
    PRECISIONS,
    WEIGHTS,
    Choices,
    Options,
    read_options,
    read_shape,
)


def test_every_field_has_exactly_one_flag() -> None:
    assert [flag.name for flag in FLAGS] == [item.name for item in fields(Options)]
    assert len({flag.spelling for flag in FLAGS}) == len(FLAGS)
    assert all(flag.help.endswith(".") or "..." in flag.help for flag in FLAGS)


def test_python_and_command_line_agree() -> None:
    python = read_options(
        {
            "inputs": {"x": (1, 3), "s": ()},
            "state": {"past": "present"},
            "buckets": {"seq": [32, 64], "batch": (1,)},
            "ranks": (1, 2, 4),
            "level": 3,
            "jobs": 2,
            "dump": Path("d"),
        }
    )
    texts = read_options(
        {
            "inputs": ("x=1x3", "s="),
            "state": ("past=present",),
            "buckets": ("seq=32,64", "batch=1"),
            "ranks": "4,1,2",
            "level": "3",
            "jobs": "2",
            "dump": "d",
        },
        python=False,
    )
    assert python == texts
    assert python.inputs == (("x", (1, 3)), ("s", ()))


def test_one_number_of_ranks_needs_no_list() -> None:
    assert read_options({"ranks": 2}).ranks == read_options({"ranks": "2"}).ranks == (2,)


def test_missing_options_keep_their_defaults() -> None:
    assert read_options({"target": None, "level": None, "jobs": 1}) == Options(jobs=1)


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Options().level = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("level", "4", "none of 0, 1, 2, 3"),
        ("level", "fast", "none of 0, 1, 2, 3"),
        ("numerics", "fast", "none of default, strict"),
        ("weight_growth", "0.5", "factor of at least 1"),
        ("weight_growth", "inf", "factor of at least 1"),
        ("weight_growth", "twice", "factor of at least 1"),
        ("jobs", "0", "at least 1"),
        ("jobs", "two", "at least 1"),
        ("inputs", ["x"], "NAME=SHAPE"),
        ("inputs", ["=2"], "NAME=SHAPE"),
        ("inputs", ["x=1,3"], "not a shape"),
        ("inputs", ["x=1x-3"], "not a shape"),
        ("inputs", ["x=1", "x=2"], "twice"),
        ("inputs", {"x": (1, -3)}, "not a shape"),
        ("state", ["past"], "PAST=PRESENT"),
        ("state", ["past="], "not a name"),
        ("target", "", "not a name"),
        ("name", "1st", "C identifier"),
        ("name", "a b", "C identifier"),
        ("name", "tcc_model", "tcc's own"),
        ("inputs", 5, "not iterable"),
        ("inputs", {"x": 5}, "not iterable"),
        ("buckets", {"n": 5}, "not iterable"),
        ("jobs", 1.5, "at least 1"),
        ("ranks", "0", "at least 1"),
        ("ranks", "1,-2", "at least 1"),
        ("ranks", "1,,2", "at least 1"),
        ("ranks", "1,1", "1 is given twice"),
        ("ranks", "1,65", "65 is not in 1 to 64"),
        ("ranks", (), "not in 1 to 64"),
        ("ranks", 2.5, "not iterable"),
    ],
)
def test_bad_values_name_the_flag_and_the_reason(name: str, value: object, why: str) -> None:
    (flag,) = (flag for flag in FLAGS if flag.name == name)
    with pytest.raises(UserError) as caught:
        read_options({name: value}, python=False)
    assert caught.value.where == flag.spelling
    assert why in caught.value.why
    with pytest.raises(UserError) as caught:
        read_options({name: value})
    assert caught.value.where == f"{name}="


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(UserError, match="unknown option 'presicion'") as caught:
        read_options({"presicion": "f32"})
    assert "target, cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("output", "module.save(path)"),
        ("out", "module.save(path)"),
        ("example_inputs", "inputs=(x,)"),
        ("no_derive", "derive=False"),
    ],
)
def test_keywords_of_other_interfaces_are_answered(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"unknown option '{name}'") as caught:
        tcc.compile("m.onnx", **{name: "x"})
    assert hint in caught.value.hint


def test_examples_in_the_place_of_the_target_are_answered() -> None:
    for second in (object(), (1, 2), Path("m.so")):
        with pytest.raises(UserError, match=r"second argument .* is the target") as caught:
            tcc.compile("m.onnx", second)  # type: ignore[arg-type]
        assert type(second).__name__ in caught.value.why
        assert "inputs=(x,)" in caught.value.hint


def test_editors_see_every_option() -> None:
    """Editors see the types of keywords, and the signature in the order of `Options`."""
    names = [item.name for item in fields(Options)][1:]
    names.insert(names.index("inputs") + 1, "dynamic_shapes")
    assert [*Choices.__annotations__] == names
    assert get_type_hints(tcc.compile)["options"] == Unpack[Choices]
    assert [*signature(tcc.compile).parameters] == ["model", "target", "threads", "comm", *names]
    hints = get_type_hints(Choices)
    allowed = {"numerics": NUMERICS, "precision": PRECISIONS, "gpu_kernels": GPU_KERNELS}
    assert {name: get_args(hints[name]) for name in allowed} == allowed
    integers, nothing = get_args(hints["weights"])
    assert (get_args(integers), nothing) == (tuple(WEIGHTS), type(None))


def test_modules_without_example_inputs_are_refused() -> None:
    module = type("Module", (), {"__module__": "torch.nn"})()
    with pytest.raises(UserError, match="no inputs to export") as caught:
        tcc.compile(module)
    assert "inputs=(x,)" in caught.value.hint


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(UserError) as caught:
        read_options({"inputs": ("x" * 1000,)})
    assert len(caught.value.why) < 100


@pytest.mark.parametrize(("text", "shape"), [("", ()), ("7", (7,)), ("1x0x12", (1, 0, 12))])
def test_shapes_read(text: str, shape: tuple[int, ...]) -> None:
    assert read_shape(text) == shape


@pytest.mark.parametrize("text", ["x", "1x", "x2", "1X2", "²", "1.5"])
def test_shapes_refuse(text: str) -> None:
    with pytest.raises(ValueError, match="not a shape"):
        read_shape(text)
