"""The simulator: the released script's arithmetic, queues that can be worked out by hand, costs from measured runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from harness.cli import main
from harness.errors import UserError
from harness.records import Phases, Route, Row
from harness.sim.__main__ import main as sim
from harness.sim.__main__ import simulated, write
from harness.sim.backend import Sim
from harness.sim.calibrate import calibrate, measured
from harness.sim.cost_file import read
from harness.sim.costs import CostFile, Effort, Linear, Recipe, RouteCost, Work
from harness.sim.service import Machine, SimService
from harness.tasks.trace import TraceTask
from harness.traffic.plan import plan
from harness.traffic.replay import Replay
from harness.traffic.rows import row
from harness.traffic.text import RANDOM, text
from methods.dense import DenseMethod
from tests.harness.served import agents_plan, words
from traces.paper import Paper, prefill_tokens, recomputed


def paper(family: str, shared: int, qps: float = 8.0) -> list[Row]:
    """The paper's trace under the authors' preset, 68 requests."""
    trace = Paper(shared=shared, qps=qps).trace()
    backend = Sim(costs="authors", describe=family, encode_tokens=shared)
    with backend.serve(None, DenseMethod(), family, 0) as service:
        replay = Replay(plan(trace, 0, None), text(RANDOM, None, 30_000, 0), service)
        return [row(o, 0, service, lambda ids: "") for o in replay.measured()]


def median_s(rows: list[Row]) -> float:
    return float(np.median([h.ttft_s for r in rows for h in r.hops]))


def computed(rows: list[Row]) -> int:
    """Prompt tokens computed, encodes included."""
    hops = [h for r in rows for h in r.hops]
    return sum(h.fresh_token_layers // 32 + int(h.notes.get("encode_tokens", 0)) for h in hops)


@pytest.mark.parametrize(
    ("shared", "seconds"),
    [(2048, (8.9, 4.0, 2.2)), (8192, (33.4, 21.4, 13.6)), (32768, (171.0, 120.0, 77.6))],
    ids=["2K", "8K", "32K"],
)
def test_the_released_scripts_backlog(shared: int, seconds: tuple[float, float, float]) -> None:
    """Median TTFT at 8 QPS, first come first served: the published ratios follow from what is charged."""
    found = {family: paper(family, shared) for family in ("nonshared", "graphflow", "kvcmas")}
    assert [median_s(rows) for rows in found.values()] == pytest.approx(seconds, rel=0.01)
    for family, rows in found.items():
        assert computed(rows) == prefill_tokens(family, shared)
    if shared == 32768:
        assert median_s(found["nonshared"]) / median_s(found["kvcmas"]) == pytest.approx(2.2, abs=0.05)
        assert 1 - median_s(found["kvcmas"]) / median_s(found["graphflow"]) == pytest.approx(0.35, abs=0.01)


def test_one_inferred_number_gives_all_three_published_ratios() -> None:
    """At 32K and 8 QPS the paper reports 2.0x, 27 % against GraphFlow, and 34 % (median and 90th) against no chain."""
    kvcmas, star, graphflow, nonshared = (
        [h.ttft_s for r in paper(family, 32768) for h in r.hops]
        for family in ("kvcmas_learning", "kvcmas_star_learning", "graphflow", "nonshared")
    )
    median = float(np.median(kvcmas))
    assert float(np.median(nonshared)) / median == pytest.approx(2.0, abs=0.03)
    assert 1 - median / float(np.median(graphflow)) == pytest.approx(0.27, abs=0.02)
    for p in (50, 90):
        assert 1 - float(np.percentile(kvcmas, p) / np.percentile(star, p)) == pytest.approx(0.34, abs=0.01)


@pytest.mark.parametrize("family", ["fullshared", "droidspeak", "cacheblend", "relaycaching", "kvcomm", "kvcmas_star"])
def test_the_released_scripts_token_accounting(family: str) -> None:
    same = {"kvcmas_star": "kvcomm"}.get(family, family)  # a star encodes as the encode family does
    assert computed(paper(family, 2048)) == prefill_tokens(same, 2048)


def test_the_authors_preset_charges_what_their_formulas_say() -> None:
    methods = read("authors").methods
    for family in ("droidspeak", "cacheblend", "relaycaching"):
        assert methods[family].recompute == pytest.approx(recomputed(family, 0.2), abs=1e-6)


UNIT = Linear(computed_s=1.0)


def service(slots: int, recipe: Recipe, tokens: float | None = None, **cost: Linear) -> SimService:
    routes = {route: RouteCost(**{"prefill": UNIT, **cost}) for route in Route}
    return SimService(Machine("by hand", "none", 1, slots, 1000, routes, tokens), recipe, None)


def played(found: SimService, **changes: object) -> list[Row]:
    replay = Replay(agents_plan(**changes), words(), found)
    return [row(o, 0, found, lambda ids: "") for o in replay.measured()]


def test_one_call_at_a_time() -> None:
    """Hops of one trajectory: a token a second to prefill, learning holds up the next."""
    (only,) = played(service(1, Recipe(), learn=Linear(fixed_s=10.0), decode=Linear(decoded_s=2.0)), trajectories=1)
    first, second = only.hops[:2]
    assert first.ttft_s == first.prompt_tokens
    assert first.e2e_s == first.prompt_tokens + 4 * 2.0 + 10.0
    assert second.ttft_s == 10.0 + second.prompt_tokens  # due when the first ended, before it was learned from


def test_spans_of_ended_hops_are_reused_and_roles_come_from_a_cache() -> None:
    (only,) = played(service(1, Recipe(reuse="spans", role_reuse=True)), trajectories=1)
    assert [h.route for h in only.hops] == [Route.dense, Route.reuse, Route.reuse]
    first, second, _ = only.hops
    assert first.fresh_token_layers == first.prompt_tokens
    assert second.fresh_token_layers == second.prompt_tokens - second.shared_tokens  # its role was never seen before
    rows = played(service(1, Recipe(reuse="spans", role_reuse=True)), trajectories=2)
    later = next(r for r in rows if r.sample_id == "1").hops[1]
    assert later.fresh_token_layers == later.prompt_tokens - later.shared_tokens - 8
    half = next(r for r in played(service(1, Recipe(reuse="spans", recompute=0.5)), trajectories=1)).hops[1]
    assert half.fresh_token_layers == half.prompt_tokens - half.shared_tokens + round(half.shared_tokens / 2)


def test_refusals_come_at_their_share() -> None:
    rows = played(service(1, Recipe(reuse="spans", refused=0.25)), trajectories=40)
    routes = [h.route for r in rows for h in r.hops if h.index]
    assert routes.count(Route.fallback) / len(routes) == pytest.approx(0.25, abs=0.02)
    cold = played(service(1, Recipe(reuse="spans", needs=2)), trajectories=4, qps=0.001)
    assert [h.route is Route.reuse for r in cold for h in r.hops[1:]] == [False] * 4 + [True] * 4


def test_a_batch_shares_its_steps() -> None:
    """Equal calls at one moment: prefills go one after the other within a step, decoding is paid once for all."""
    recipe, decode = Recipe(), Linear(decoded_s=1.0)
    options = {"trajectories": 4, "agents": 1, "final": False, "qps": 1e6}
    alone, batched = (played(service(slots, recipe, decode=decode), **options) for slots in (1, 4))
    prompt = alone[0].hops[0].prompt_tokens
    assert max(r.e2e_s for r in alone) == pytest.approx(4 * (prompt + 4.0), rel=1e-3)
    # The first call prefills alone, since the others come a moment later; then three prefills and a token of the first.
    assert max(r.e2e_s for r in batched) == pytest.approx(prompt + (3 * prompt + 1) + 4.0, rel=1e-3)
    room = played(service(4, recipe, tokens=prompt + 6.0, decode=decode), **options)
    assert max(r.e2e_s for r in room) == pytest.approx(4 * (prompt + 4.0), rel=1e-3)  # cache for one at a time


def test_hundreds_of_agents_do_not_overtake_time() -> None:
    rows = played(service(64, Recipe(reuse="spans"), decode=Linear(decoded_s=0.5)), trajectories=200, qps=100.0)
    assert len(rows) == 200
    for r in rows:
        times = [h.timing for h in r.hops]
        assert all(t is not None and t.due_s <= t.started_s <= t.first_token_s <= t.ended_s for t in times)


MEASURED = [
    "task=trace", "model=tiny", "tracking=none", "task.warmup=2", "trace.trajectories=5", "trace.agents=3",
    "trace.system_tokens=8", "trace.shared_tokens=64", "trace.private_tokens=4", "trace.output_tokens=3",
    "trace.qps=100",
]  # fmt: skip


def test_costs_from_measured_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *MEASURED, "method=dense,kvcmas", f"results_dir={tmp_path}"]) == 0
    folders = sorted(p.parent for p in tmp_path.glob("*/*/summary.json"))
    runs = measured(folders)
    costs = calibrate(runs)
    assert set(costs.methods) == {"dense", "kvcmas"}
    assert costs.slots == 1  # transformers: one call after another
    batched = [dataclasses.replace(run, slots=8, budget=512) for run in runs]
    assert (calibrate(batched).slots, calibrate(batched).budget) == (8, 512)
    with pytest.raises(UserError, match="of engines with 1 and 8 calls at once"):
        calibrate([runs[0], batched[1]])
    dense, kvcmas = costs.methods["dense"], costs.methods["kvcmas"]
    assert (dense.reuse, dense.role_dense) == ("nothing", False)
    assert (kvcmas.reuse, kvcmas.role_reuse, kvcmas.recompute, kvcmas.refused) == ("spans", True, 0.0, 0.0)
    assert kvcmas.glue == 1.0
    for run in runs:  # the same tokens are computed on the same routes, and phases add up to what was measured
        made = {(r.sample_id, h.index): h for r in simulated(run, costs) for h in r.hops}
        real = [h for h, _ in run.hops]
        assert sorted((h.index, h.route, h.fresh_token_layers) for h in made.values()) == sorted(
            (h.index, h.route, h.fresh_token_layers) for h in real
        )
        for phase in ("prefill_s", "decode_s"):
            total = sum(getattr(h.phases, phase) for h in made.values())
            assert total == pytest.approx(sum(getattr(h.phases, phase) for h in real), rel=0.1)
    assert sim(["calibrate", *map(str, folders), "--out", str(tmp_path / "c.yaml")]) == 0
    assert read(str(tmp_path / "c.yaml")) == costs
    assert sim(["validate", *map(str, folders), "--costs", str(tmp_path / "c.yaml")]) == 0
    assert "kvcmas" in capsys.readouterr().out
    words = ["backend=sim", f"backend.costs={tmp_path / 'c.yaml'}", "method=kvcmas", f"results_dir={tmp_path / 's'}"]
    assert main([*MEASURED, *words]) == 0
    folder = next((tmp_path / "s").glob("*/*"))
    with pytest.raises(UserError, match="that really ran"):
        measured([folder])
    capsys.readouterr()
    assert sim(["calibrate", str(tmp_path), "--out", str(tmp_path / "d.yaml")]) == 0  # a parent of them all
    assert capsys.readouterr().err == f"left out: {folder} is a simulation; give runs of task=trace that really ran\n"
    assert read(str(tmp_path / "d.yaml")).methods.keys() == costs.methods.keys()
    assert sim(["calibrate", str(tmp_path / "s")]) == 2
    assert "none of the runs can be used" in capsys.readouterr().err
    others = tmp_path / "o.yaml"
    described, ours = msgspec.structs.replace(kvcmas, phases={}), read("ours")
    mixed = msgspec.structs.replace(ours, layers=costs.layers, methods={"dense": dense, "kvcmas": described})
    for changed, says in (
        (msgspec.structs.replace(costs, layers=99), "its layers is 99, but"),
        (msgspec.structs.replace(costs, methods={"dense": dense}), "it does not describe kvcmas, valid here: dense"),
        (mixed, "it describes kvcmas by its work, without measured phases; give"),
    ):
        write(changed, others)
        assert sim(["validate", *map(str, folders), "--costs", str(others)]) == 2
        assert f"error: --costs: {says}" in capsys.readouterr().err
    rows = folders[0] / "rows.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:-1]))
    for what in ("calibrate", "validate"):
        assert sim([what, str(folders[0])]) == 2
        assert "rows.jsonl has 2 whole rows and summary.json counts 3" in capsys.readouterr().err


def test_fits_find_what_made_the_times() -> None:
    from harness.records import HopRecord
    from harness.sim.calibrate import _cost

    hops = []
    for prompt in (100, 200, 400):
        for fresh in (20, prompt):
            phases = Phases(prefill_s=0.5 + 0.01 * fresh + 1e-5 * fresh * (prompt - fresh / 2))
            hops.append(
                HopRecord(
                    agent="a", index=0, route=Route.dense, prompt_tokens=prompt, shared_tokens=0,
                    fresh_token_layers=fresh, output_tokens=1, ttft_s=9.0, e2e_s=9.0, phases=phases,
                )
            )  # fmt: skip
    found = _cost([(hop, hop.fresh_token_layers) for hop in hops]).prefill
    assert (found.fixed_s, found.computed_s, found.attended_s) == pytest.approx((0.5, 0.01, 1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("about: x", "methods"),
        ("about: x\nmethods: {a: {reuse: much}}", "reuse"),
        ("about: x\nmethods: {a: {refused: 2.0}}", "refused must be from 0 to 1"),
        ("about: x\nslots: 0\nmethods: {}", "slots and budget"),
        ("about: [", "is no cost file"),
    ],
)
def test_a_broken_cost_file_is_named(yaml: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml)
    with pytest.raises(UserError, match=says):
        read(str(path))


EVERY = RouteCost(prefill=Linear(fixed_s=0.25, computed_s=1e-3))
MADE = CostFile(about="by hand", layers=2, methods={"dense": Recipe(phases={Route.dense: EVERY})})


def test_a_measured_cost_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """Or says all the same: its last lines are numbers that no fit has and that are 0."""
    whole, path = tmp_path / "w.yaml", tmp_path / "c.yaml"
    write(MADE, whole)
    assert read(str(whole)) == MADE
    text = whole.read_bytes()
    for end in range(text.index(b"encoded_attended_s: 0.0\n        ", text.index(b"encode:"))):
        path.write_bytes(text[:end])
        with pytest.raises(UserError, match=r"c\.yaml is no cost file"):
            read(str(path))
    path.write_bytes(text[: text.rindex(b"          decoded_s")])
    assert read(str(path)) == MADE


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("fixed_s: 0.25", "fixed_s: -0.25", "methods.dense.phases.dense.prefill.fixed_s is -0.25, expected seconds"),
        ("fixed_s: 0.25", "fixed_s: 1e308", "methods.dense.phases.dense.prefill.fixed_s is 1e.308, expected seconds"),
        ("fixed_s: 0.25", "fixed_s: .nan", "prefill.fixed_s is nan, expected seconds from 0 to 1000000"),
        ("        decode:\n", "        decoed:\n", "decoed"),
        ("          fixed_s: 0.25\n", "", "methods.dense.phases.dense.prefill has no fixed_s"),
        ("layers: 2", "layers: null", "it has no layers, which the measured phases of dense need"),
        ("layers: 2", "layers: -2", "layers is -2|Expected `int` >= 1"),
        ("reuse: nothing", "reuse: spans", "methods.dense.phases has no reuse, a route that dense takes"),
        ("refused: 0.0", "refused: .inf", "refused must be from 0 to 1"),
        ("needs: 0", "needs: -1", "needs and encodes at least 0"),
    ],
)
def test_a_measured_cost_file_names_what_is_wrong(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    write(MADE, path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=f"c.yaml is no cost file: .*({says})"):
        read(str(path))


@pytest.mark.parametrize("value", ["-1.0", "1e999", "0.0"])
def test_rates_that_cannot_be(value: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"about: x\nhardware: {{h: {{flop_s: {value}, bytes_s: 1.0, memory_bytes: 1.0}}}}\nmethods: {{}}\n")
    with pytest.raises(UserError, match="flop_s"):
        read(str(path))


def test_a_cost_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match=r"c.yaml is no cost file: it is no text .*calibrate writes"):
        read(str(path))


def test_measured_phases_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    write(msgspec.structs.replace(MADE, models=read("ours").models), path)
    with pytest.raises(UserError, match=r"layers=2, but backend.model=llama31_8b has 32"):
        Sim(costs=str(path)).check(None, DenseMethod(), "dense", 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["calibrate", "nowhere"], "error: nowhere: there is no such folder"),
        (["calibrate", "file"], "error: file: this is a file; give the folder of a run"),
        (["calibrate", "empty"], "error: empty: there is no run in it or below it"),
    ],
)
def test_places_without_runs(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert sim(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_cost_file(name: str) -> None:
    with pytest.raises(UserError, match=f"--costs={name}: expected the name of a cost file, one of authors, ours"):
        read(name, "--costs")


def test_presets_can_be_read_and_written() -> None:
    for name in ("authors", "ours"):
        file = read(name)
        assert msgspec.convert(msgspec.to_builtins(file), CostFile) == file
    assert {"a100", "a6000", "h100"} <= set(read("ours").hardware)
    assert isinstance(read("ours").methods["kvcmas"].match, Effort)
    work = Work(
        route=Route.reuse, prompt=10, computed=2, reused=8, attended=17.0, shared=8, encoded=0, decoded=0, context=0.0
    )
    assert Linear(fixed_s=1.0, reused_s=0.5).seconds(work) == 5.0
    assert Linear(floor_s=3.0).seconds(work) == 3.0
    assert TraceTask().warmup == 4
