"""`scripts/breadth` draws models, measures them, prints its table, and resumes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from zoo import command, draw, outcomes, report

LIST = Path(__file__).resolve().parents[2] / "scripts" / "results" / "breadth_list.json"
BOTH = ("resnet", "swin", "vit", "beit", "efficientnet")
REGISTRIES = {
    "text": {"bert": ["BertForMaskedLM", "BertLMHeadModel"], "t5": ["T5"], "gpt2": ["GPT2"]},
    "vision": {family: [family.upper()] for family in BOTH},
    "timm": {family: [f"{family}_a", f"{family}_b"] for family in (*BOTH, "dla", "dpn")},
}
PLACES = {"text": 2, "vision": 2, "timm": 2}
FIXED = (draw.Entry("vision", "efficientnet", "Fixed", {"width": 1.0}),)


def made(seed: int = 3, registries: Any = REGISTRIES) -> draw.Candidates:
    return draw.draw(registries, {"timm": "1"}, seed=seed, places=PLACES, fixed=FIXED)


# ---- the draw ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_family_is_drawn_once_and_fixed_ones_come_first(seed: int) -> None:
    drawn = made(seed)
    families = [entry.family for entry in drawn.entries()]
    assert sorted(families) == sorted({f for r in REGISTRIES.values() for f in r})
    assert drawn.order["vision"][0] == FIXED[0]
    for entry in drawn.entries():
        assert entry in FIXED or entry.model in REGISTRIES[entry.registry][entry.family]


def test_equal_seeds_give_equal_lists_whatever_the_order_of_the_registries() -> None:
    reversed_models = {
        name: {family: models[::-1] for family, models in reversed(found.items())}
        for name, found in reversed(REGISTRIES.items())
    }
    assert draw.text(made()) == draw.text(made(registries=reversed_models))
    assert len({draw.text(made(seed)) for seed in range(8)}) > 4


def test_another_family_moves_no_other_one() -> None:
    more = REGISTRIES | {"text": REGISTRIES["text"] | {"opt": ["OPT"]}}
    before, after = list(made().entries()), list(made(registries=more).entries())
    assert [entry for entry in after if entry.family != "opt"] == before


def test_the_order_is_that_of_the_hash() -> None:
    from hashlib import sha256

    text = [entry.family for entry in made().order["text"]]
    assert text == sorted(text, key=lambda f: sha256(f"3 text {f}".encode()).hexdigest())


def test_a_failed_model_is_replaced_by_the_next_in_its_registry() -> None:
    drawn = made()
    first = [e.family for e in drawn.members(set())]
    text = [e.family for e in drawn.order["text"]]
    vision = [e.family for e in drawn.order["vision"]]
    assert first[:4] == text[:2] + vision[:2]
    after = [e.family for e in drawn.members({text[0], vision[1]})]
    assert after == [text[1], text[2], vision[0], *vision[2:3], *first[4:]]
    assert next(e.family for e in drawn.members({*text[:2]})) == text[2]  # it ran out: one fewer


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(draw.text(made()))
    assert draw.read(path, FIXED) == made()
    path.write_text('{"seed": 3, "order": []}')
    with pytest.raises(ValueError, match=r"list\.json holds no draw"):
        draw.read(path, FIXED)


def test_the_committed_list_keeps_the_rules() -> None:
    drawn = draw.read(LIST)
    families = [entry.family for entry in drawn.entries()]
    assert len(families) == len(set(families))
    members = drawn.members(set())
    assert len(members) >= 60
    assert all(entry in members for entry in draw.FIXED)
    for registry, listed in drawn.order.items():
        drawn_ones = [e for e in listed if e not in draw.FIXED]
        keys = [draw._key(drawn.seed, registry, e.family) for e in drawn_ones]
        assert keys == sorted(keys)


def test_parts_are_all_of_it_and_hold_their_members_where_one_is_replaced() -> None:
    drawn = made()
    members = drawn.members(set())
    parts = [draw.shard(members, drawn, part, 3) for part in (1, 2, 3)]
    assert sorted(e.family for p in parts for e in p) == sorted(e.family for e in members)
    failed = members[0].family
    for part, before in enumerate(parts, 1):
        after = draw.shard(drawn.members({failed}), drawn, part, 3)
        assert {e.family for e in before} - {failed} <= {e.family for e in after}
    assert draw.part_of("2/7") == (2, 7)
    for wrong in ("0/7", "8/7", "2", "2/0", "-1/3"):
        with pytest.raises(ValueError, match="is no part"):
            draw.part_of(wrong)


# ---- signals -------------------------------------------------------------------------------------


def net(torch: Any, scale: float = 1.0) -> Any:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


def found(torch: Any, model: Any) -> list[str]:
    from zoo import signals

    first, second = ({"x": torch.randn(4, 8)} for _ in range(2))
    with torch.no_grad():
        return signals.findings(model, lambda inputs: [model(inputs["x"])], first, second)


def test_living_signals_are_left_alone() -> None:
    torch = pytest.importorskip("torch")
    assert found(torch, net(torch)) == []


@pytest.mark.parametrize(("factor", "text"), [(0.0, "0.0e+00"), (1e5, "e+0"), (math.nan, "nan")])
def test_a_layer_that_is_dead_or_explodes_is_named(factor: float, text: str) -> None:
    torch = pytest.importorskip("torch")
    model = net(torch)
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.mul_(factor)
    lines = found(torch, model)
    assert lines[0].startswith("layer 0: standard deviation ")
    assert text in lines[0]


def test_an_output_that_ignores_the_input_is_caught() -> None:
    torch = pytest.importorskip("torch")
    from zoo import signals

    model = net(torch)
    fixed = torch.randn(4, 8)
    first, second = ({"x": torch.randn(4, 8)} for _ in range(2))
    with torch.no_grad():
        lines = signals.findings(
            model, lambda inputs: [model(inputs["x"]), model(fixed)], first, second
        )
    assert lines == ["another input moves output 1 by 0.0e+00 of its range"]


def test_scaling_brings_signals_back_by_powers_of_two() -> None:
    torch = pytest.importorskip("torch")
    from zoo import signals

    dead, alive = net(torch, 2.0**-12), net(torch)
    assert found(torch, dead)
    inputs = {"x": torch.randn(64, 8)}
    assert signals.rescale(dead, lambda feeds: [dead(feeds["x"])], inputs) == 2
    assert found(torch, dead) == []
    for one, other in zip(dead.parameters(), alive.parameters(), strict=True):
        exponents = torch.log2((one / other).detach())
        assert bool((exponents == exponents.flatten()[0].round()).all())
    assert 0.5 < float(dead[0](inputs["x"]).detach().std()) < 2


def test_batch_norms_whose_biases_drown_the_input_are_calibrated() -> None:
    torch = pytest.importorskip("torch")
    from zoo import signals

    torch.manual_seed(0)
    blocks: list[Any] = []
    for _ in range(8):
        blocks += [torch.nn.Conv2d(4, 4, 3, bias=False), torch.nn.BatchNorm2d(4)]
    model = torch.nn.Sequential(*blocks).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.02 if parameter.ndim == 4 else 1.0).add_(0.1 * ("bias" in name))
    images = [{"x": torch.randn(1, 4, 32, 32)} for _ in range(2)]

    def call(inputs: Any) -> list[Any]:
        with torch.no_grad():
            return [model(inputs["x"])]

    assert signals.findings(model, call, *images)
    signals.rescale(model, call, images[0])
    assert signals.findings(model, call, *images) == []


def test_constants_of_a_constructor_become_random_and_draws_stay() -> None:
    torch = pytest.importorskip("torch")
    from zoo import signals

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    weight = model[0].weight.clone()
    signals.seed_weights(model, 1)
    assert torch.equal(model[0].weight, weight)
    gain, bias = model[1].weight, model[1].bias
    assert len(set(gain.tolist())) == len(set(bias.tolist())) == 8
    assert abs(sum(gain.tolist()) / 8 - 1) < 0.2 > abs(sum(bias.tolist()) / 8)


# ---- agreement, outcomes, resuming ---------------------------------------------------------------


def test_the_tolerance_of_results_follows_the_difference_of_the_peers() -> None:
    from zoo.timing import agreement

    def outputs(error: float) -> dict[str, Any]:
        return {"y": np.array([2.0, 1.0 + 2 * error], np.float32)}

    close_outputs = {"tcc": outputs(1e-4), "ort": outputs(0)}
    assert agreement(close_outputs, 1e-3) == pytest.approx(1e-4, rel=0.01)
    assert agreement({"tcc": outputs(1e-4)}, 1e-3) is None
    wide = {"tcc": outputs(0.03), "ort": outputs(0), "openvino": outputs(0.01)}
    assert agreement(wide, 1e-3) == pytest.approx(0.03)
    for distance in (0.05, math.nan):
        with pytest.raises(ValueError, match="results differ"):
            agreement(wide | {"tcc": outputs(distance)}, 1e-3)
    assert agreement(wide | {"tcc": outputs(0.05)}, 0.1) == pytest.approx(0.05)


def test_a_process_that_dies_or_stalls_is_a_failure_and_one_that_answers_is_heard(
    tmp_path: Path,
) -> None:
    store = outcomes.Outcomes(tmp_path)

    def ran(code: str, seconds: float = 30) -> outcomes.Outcome:
        return outcomes.in_process(store, "export", "bert", ("-c", code), seconds)

    dead = ran("import os; print('the last words', flush=True); os.abort()")
    assert dead == {"outcome": "failed", "why": "its process ended with -6: the last words"}
    assert store.failed_exports() == {"bert"}
    stalled = ran("import sys; sys.stdin = None; import threading; threading.Event().wait()", 0.3)
    assert stalled["why"] == "it took more than 0 s"
    path = tmp_path / "bert.export.json"
    told = ran(f"open({str(path)!r}, 'w').write('{{\"outcome\": \"done\"}}')")
    assert told == {"outcome": "done"}
    assert store.failed_exports() == set()


def chosen(**more: Any) -> argparse.Namespace:
    plan = {"threads": 1, "rounds": 1, "seconds": 0.1, "patience": 0.0, "cap": 1.0}
    flags: dict[str, Any] = {"shard": (1, 1), "only": (), "again": False, "discard": False}
    flags["precision"] = "f32"
    return argparse.Namespace(**{**plan, **flags, **more})


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Makes exports of families in `bad` fail; returns the outcomes, the executed steps, and
    `bad`."""
    calls: list[tuple[str, str]] = []
    bad: set[str] = set()
    outcome_store = outcomes.Outcomes(tmp_path)

    def step(store: Any, kind: str, entry: draw.Entry, arguments: Any, place: str) -> Any:
        calls.append((kind, entry.family))
        failed = kind == "export" and entry.family in bad
        found = {"outcome": "failed", "why": "no"} if failed else {"outcome": "done"}
        store.put(kind, entry.family, found)
        if kind == "export" and not failed:
            for suffix in (".onnx", ".npz"):
                (tmp_path / f"{entry.family}{suffix}").touch()
        return found

    monkeypatch.setattr(command, "_step", step)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "_check_libraries", lambda: None)
    return outcome_store, calls, bad


def test_exports_resume_replace_and_are_done_in_parts(steps: Any) -> None:
    store, calls, bad = steps
    drawn = made()
    text = [e.family for e in drawn.order["text"]]
    bad.add(text[0])
    remaining = [command.exporting(drawn, store, chosen(shard=(part, 2))) for part in (1, 2)]
    assert remaining[0] == 1
    command.exporting(drawn, store, chosen())
    families = [family for _, family in calls]
    assert len(families) == len(set(families)), "none was done twice"
    assert set(families) == {e.family for e in drawn.members(bad)} | bad
    calls.clear()
    assert command.exporting(drawn, store, chosen()) == 0
    assert calls == []
    bad.clear()
    command.exporting(drawn, store, chosen(only=(text[0],), again=True))
    assert calls == [("export", text[0])]


def test_timing_resumes_and_exports_missing_models(steps: Any, tmp_path: Path) -> None:
    store, calls, _ = steps
    drawn = made()
    members = [entry.family for entry in drawn.members(set())]
    store.put("time", members[1], {"outcome": "done"})
    store.put("export", members[0], {"outcome": "done"})  # elsewhere: its file is not here
    assert command.timing(drawn, store, chosen(discard=True)) == 0
    expected = [(kind, f) for f in members if f != members[1] for kind in ("export", "time")]
    assert calls == expected
    assert not list(tmp_path.glob("*.onnx"))
    calls.clear()
    assert command.timing(drawn, store, chosen()) == 0
    assert calls == []
    command.timing(drawn, store, chosen(again=True, only=(members[1],)))
    assert calls == [("export", members[1]), ("time", members[1])]


def test_a_published_failure_is_replaced_on_a_machine_that_has_no_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "breadth.json"
    bad, good = '{"outcome": "failed", "why": "no"}', '{"outcome": "done"}'
    path.write_text(f'{{"exports": {{"bert": {bad}, "t5": {good}}}}}')
    store = outcomes.Outcomes(tmp_path / "none", path)
    assert store.failed_exports() == {"bert"}
    assert store.get("export", "t5") is None


def test_a_published_time_counts_on_the_same_processor_alone(steps: Any, tmp_path: Path) -> None:
    _, calls, _ = steps
    drawn = made()
    members = [entry.family for entry in drawn.members(set())]
    path = tmp_path / "breadth.json"
    timed = {members[0]: times(0.01, ort=0.02), members[1]: times(0.01) | {"target": "cpu:znver5"}}
    exports = {key: {"outcome": "done"} for key in members[:2]}
    path.write_text(json.dumps({"exports": exports, "times": timed}))
    store = outcomes.Outcomes(tmp_path, path, "cpu:znver4")
    command.timing(drawn, store, chosen())
    assert [family for kind, family in calls if kind == "time"] == members[1:]
    assert set(report.collect(drawn, store)["times"]) == set(members)
    store = outcomes.Outcomes(tmp_path / "none", path, "cpu:znver4")
    assert store.get("export", members[0]) == {"outcome": "done"}
    command.timing(drawn, store, chosen(again=True, only=(members[0],)))
    assert calls[-1] == ("time", members[0])


# ---- the table -----------------------------------------------------------------------------------


def times(tcc: float, **peers: Any) -> dict[str, Any]:
    """Returns a timed model; each runtime has two rounds, and the second takes a fifth longer."""

    def peer(best: float) -> dict[str, Any]:
        return {"least": best, "best": best, "median": 1.1 * best, "rounds": [best, 1.2 * best]}

    peer_rows = {k: peer(v) if isinstance(v, float) else v for k, v in peers.items()}
    kernel = {"launches": 2, "bound": "flops", "source": "a.py", "predicted": 0.001}
    return {
        "outcome": "done",
        "target": "cpu:znver4",
        "date": "2026-12-01",
        "plan": {"threads": 2, "rounds": 2, "seconds": 0.3},
        "compile_seconds": 3.0,
        "error": 2e-6,
        "peers": {"tcc": peer(tcc), **peer_rows},
        "peaks": {"flops": [1e11, 2e11]},
        "contraction_flops": 4e8,
        "kernel_seconds": 0.01,
        "kernels": [
            kernel | {"name": "k7", "measured": 0.004, "share": 0.25},
            kernel | {"name": "k3", "measured": 0.002, "share": None},
        ],
    }


def results(tmp_path: Path) -> dict[str, Any]:
    """Returns three timed models, with ratios 2.0, 0.5 and, with one peer only, 1.0, and a model on
    which tcc failed."""
    drawn, store = made(), outcomes.Outcomes(tmp_path)
    text, vision = ([e.family for e in drawn.order[r]] for r in ("text", "vision"))
    store.put("export", text[0], {"outcome": "failed", "why": "Dead: 3 signals are dead"})
    for family in (*text[1:3], *vision[:2]):
        told = {"outcome": "done", "weights": 2e6, "cut": "layers / 4", "scaled": 0}
        store.put("export", family, told)
    store.put("time", text[1], times(0.01, ort=0.02, openvino=0.03))
    store.put("time", text[2], times(0.01, ort=0.05, openvino=0.005))
    store.put("time", vision[0], times(0.01, ort=0.01, openvino={"absent": "OpenVINO failed"}))
    store.put("time", vision[1], {"outcome": "failed", "why": "UserError: no such op"})
    return report.collect(drawn, store)


def test_the_mean_is_geometric_and_the_ratio_that_of_the_faster_peer(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert sorted(report.ratios(found).values()) == pytest.approx([0.5, 1.0, 2.0])
    told = dict(report.goals(found))
    assert "geometric mean 1.00, at least 1.30" in told  # of 2, 0.5 and 1; their mean is 1.17
    assert not any(told.values())


def test_losers_have_their_kernels_and_failures_are_listed(tmp_path: Path) -> None:
    found = results(tmp_path)
    drawn = made()
    text, vision, timm = ([e.family for e in drawn.order[r]] for r in ("text", "vision", "timm"))
    page = report.table(found)
    loser = page.split("kernels of those below 1.00")[1].split("\n\n")[0]
    assert f"{text[2]} 0.50" in loser
    assert [line.split()[0] for line in loser.splitlines()[3:]] == ["k7", "k3"]
    assert "40%  25% flops" in loser  # 4 ms of 10
    assert text[1] not in loser
    assert f"peers that failed:\n  {vision[0]}: openvino: OpenVINO failed\n" in page
    assert f"models that tcc failed on:\n  {vision[1]}: UserError: no such op\n" in page
    assert f"next of its registry:\n  {text[0]} ({drawn.order['text'][0].model}): Dead" in page
    assert f"export: {', '.join(timm[:2])}\n" in page
    assert f"below 0.95: {text[2]} 0.50: MISSED" in page


def test_times_in_bf16_are_kept_apart_and_beside_peers_in_bf16(tmp_path: Path) -> None:
    drawn, store = made(), outcomes.Outcomes(tmp_path)
    narrow = outcomes.Outcomes(tmp_path, precision="bf16")
    family = drawn.order["text"][0].family
    member_times = times(0.01, **{"openvino-bf16": 0.02})
    narrow.put(
        "time", family, member_times | {"plan": {**member_times["plan"], "precision": "bf16"}}
    )
    assert store.all("time") == {}
    assert report.collect(drawn, store)["times"] == {}
    found = report.collect(drawn, narrow)
    assert report.ratios(found) == {family: pytest.approx(2.0)}
    page = report.table(found)
    assert "openvino-bf16 (best)" in " ".join(page.split())
    assert "; bf16; " in page
    assert "geometric mean 2.00, at least 1.15" in dict(report.goals(found))


def test_the_table_lines_up_and_the_chart_has_every_ratio(tmp_path: Path) -> None:
    found = results(tmp_path)
    rows = report.table(found).split("\n\n")[2].splitlines()
    head, *body = rows
    assert len(body) == 3
    assert {row.index("layers / 4") + 10 for row in body} == {len(head)}
    ratios = [float(row.split()[9]) for row in body]
    assert ratios == [0.5, 1.0, 2.0]
    chart = report.chart(found)
    assert [chart.index(f">{value}<") for value in ("2.00", "1.00", "0.50")] == sorted(
        chart.index(f">{value}<") for value in ("2.00", "1.00", "0.50")
    )


def test_goals_are_met_where_they_are() -> None:
    names = [*(f"f{n}" for n in range(58)), *(entry.family for entry in draw.FIXED)]
    entries = [{"registry": "text", "family": name, "model": "M"} for name in names]
    times_by_family = {entry["family"]: times(0.01, ort=0.0135, openvino=0.02) for entry in entries}
    found = {"members": entries, "times": times_by_family, "precision": "f32"}
    assert all(met for _, met in report.goals(found))
    times_by_family["f7"] = times(0.01, ort=0.0094, openvino=0.02)
    assert [text for text, met in report.goals(found) if not met] == ["below 0.95: f7 0.94"]
    entries[-1]["family"] = "f58"
    times_by_family["f7"], times_by_family["f58"] = times(0.01, ort=0.02), times(0.01, ort=0.02)
    lost = f"fixed architectures not in the list: {draw.FIXED[-1].family}"
    assert [text for text, met in report.goals(found) if not met] == [lost]
