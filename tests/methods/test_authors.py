"""Behaviours of the authors' code that one option each restores, shown against what we do instead.

B1 and B19 are in test_frames, B6 and B8 in test_gates, B7 in test_anchor_pool, B11 in test_weighting, B18 in
test_stored_matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tiny import AGENTS, Tiny, TinyEngine, questions, relative, trajectory
from torch import Tensor

from methods.anchors import Anchor
from methods.base import KV, Dense, Reuse
from methods.delta import DeltaSharing
from methods.kvcmas import KVCMAS
from methods.weights import SoftmaxL1

MODEL = Tiny()


def bound(**options: Any) -> KVCMAS:
    method = KVCMAS(**options)
    method.bind(MODEL.shape(), 0)
    return method


def question_pool(method: KVCMAS, reader: str, source: str) -> list[str]:
    """Requests that the question's pool of an edge holds, oldest first."""
    pool = method.sharing.pools.get(f"question:{source}>{reader}")
    return [a.name.split("/")[0] for a in pool] if pool else []


def test_the_question_pool_keeps_learning() -> None:
    """B2: the authors' pool freezes once full; ours takes what its gate finds novel."""
    engine = TinyEngine(MODEL)
    pools = {}
    for rule in ("novelty", "first_n"):
        method = bound(question_admission=rule, pool=2, gate="entropy", tau=1e-6)  # refuses: every later hop is dense
        for i, question in enumerate(questions(5)):
            trajectory(method, engine, question, f"t{i}")
        pools[rule] = question_pool(method, "b", "a")
    assert pools == {"novelty": ["t3", "t4"], "first_n": ["t0", "t1"]}


def test_a_full_pool_leaves_out_a_question_it_knows() -> None:
    engine = TinyEngine(MODEL)
    method = bound(pool=2, gate="relative", tau_distance=0.05, factor_dtype="float32")
    for i, which in enumerate((0, 1, 0, 1, 2)):
        trajectory(method, engine, questions(3)[which], f"t{i}")
        expected = [["t0"], ["t0", "t1"], ["t0", "t1"], ["t0", "t1"], ["t1", "t4"]][i]
        assert question_pool(method, "b", "a") == expected


def test_first_n_with_one_pool_per_span_starves_later_readers() -> None:
    """B2 with B4: the request that fills the pool is counted before its second reader asks."""
    engine = TinyEngine(MODEL)
    starving = bound(question_admission="first_n", anchor_base="last_writer", pool=2, gate="entropy", tau=1e-6)
    for i, question in enumerate(questions(4)):
        trajectory(starving, engine, question, f"t{i}")
    edges = [set(a.deltas) for a in starving.sharing.pools["question"]]
    assert edges == [{"question:a>b", "question:b>c"}, {"question:a>b"}]


def test_the_last_writer_overwrites_the_reference_of_other_readers() -> None:
    """B4: b's deltas end up matched against the cache that c started from."""
    engine = TinyEngine(MODEL)
    question = questions(1, length=30)[0]
    options: dict[str, Any] = {"gate": "never", "codec": "full", "factor_dtype": "float32"}
    edge, writer = bound(**options), bound(anchor_base="last_writer", **options)
    calls = trajectory(edge, engine, question)
    trajectory(writer, engine, question)
    sources = [MODEL.shape().rope.remove(c.hop.sources["question"].kv.k, _at(c)) for c in calls[1:]]

    def base(anchor: Anchor) -> Tensor:
        flat = anchor.base.k.tensors()["x"]
        return flat.view(4, -1, 2, 8).transpose(1, 2)

    per_edge = [base(next(iter(edge.sharing.pools[key]))) for key in ("question:a>b", "question:b>c")]
    shared = next(iter(writer.sharing.pools["question"]))
    assert set(shared.deltas) == {"question:a>b", "question:b>c"}
    assert relative(per_edge[0], sources[0]) < 1e-6
    assert relative(per_edge[1], sources[1]) < 1e-6
    assert relative(base(shared), sources[1]) < 1e-6
    assert relative(base(shared), sources[0]) > 1e-3


@dataclass(frozen=True)
class Counted(SoftmaxL1):
    """Counts matching passes by the rows they cover."""

    calls: list[int] = field(default_factory=list)

    def match(self, keys: Tensor, values: Tensor, anchors: Sequence[Anchor], cover: int) -> tuple[Tensor, Tensor]:
        self.calls.append(cover)
        return super().match(keys, values, anchors, cover)


@pytest.mark.parametrize("memo", ["none", "request"])
def test_the_memo_reuses_weights_of_an_earlier_hop(memo: str) -> None:
    """B5: the chained reference of the question changes at every hop, the memo's key does not."""
    engine = TinyEngine(MODEL)
    method = bound(weight_memo=memo, anchor_base="last_writer", gate="always")
    weighting = Counted()
    method._sharing = DeltaSharing(replace(method.sharing.grid, weighting=weighting), MODEL.shape(), 0)
    for i, question in enumerate(questions(2)):
        trajectory(method, engine, question, f"t{i}", warmup=True)
    calls = trajectory(method, engine, questions(3)[2], "t2")
    assert all(isinstance(call.plan, Reuse) for call in calls[1:])
    assert weighting.calls.count(20) == {"none": 2, "request": 1}[memo]
    assert len(weighting.calls) == {"none": 5, "request": 3}[memo]  # a's output is read by b and by c


def test_no_anchor_reuses_silently_only_on_request() -> None:
    engine = TinyEngine(MODEL)
    ours, theirs = bound(gate="always"), bound(gate="always", min_anchors=0)
    question = questions(1)[0]
    dense, silent = trajectory(ours, engine, question)[1], trajectory(theirs, engine, question)[1]
    assert dense.plan == Dense(refused=True)
    assert isinstance(silent.plan, Reuse)
    assert isinstance(silent.plan.rows[1], KV)
    assert silent.notes["coverage"] == 0.0
    assert ours.sharing.pools
    assert not theirs.sharing.pools


def test_usage_counts_decide_who_stays() -> None:
    """B6 at work: with the legacy rule one clear winner marks every anchor as used."""
    engine = TinyEngine(MODEL)
    for usage, uses in (("mass", [0, 1, 0]), ("legacy_top_p", [1, 1, 1])):
        method = bound(usage=usage, gate="entropy", tau=0.9, codec="full", factor_dtype="float32")
        for i, question in enumerate(questions(3, length=60)):
            trajectory(method, engine, question, f"t{i}", AGENTS[:2], warmup=True)
        # the same request again: its own anchor holds nearly all the mass for the output span
        trajectory(method, engine, questions(3, length=60)[1], "again", AGENTS[:2])
        assert list(method.sharing.pools["output:a:a>b"].uses.values()) == uses


def test_first_agents_never_leave_deltas() -> None:
    """B3."""
    engine = TinyEngine(MODEL)
    method = bound(gate="never")
    trajectory(method, engine, questions(1)[0])
    edges = {edge for pool in method.sharing.pools.values() for a in pool for edge in a.deltas}
    assert edges == {"question:a>b", "question:b>c", "output:a:a>b", "output:a:a>c", "output:b:b>c"}


def test_a_chain_starts_again_at_a_dense_hop() -> None:
    """3.10: upstream takes the cache of the agent before, first_hop that of the first, whatever lies between."""
    engine = TinyEngine(MODEL)
    for reference, hop in (("upstream", 1), ("first_hop", 0)):
        method = bound(gate="never", reference=reference, codec="full", factor_dtype="float32")
        calls = trajectory(method, engine, questions(1)[0])
        source = "ba"[hop == 0]
        anchor = next(iter(method.sharing.pools[f"question:{source}>c"]))
        place = calls[hop].hop.prompt.placed[1]
        held = calls[hop].ran.kv(place.start, place.stop).derotated(MODEL.shape().rope)
        stored = anchor.base.k.tensors()["x"].view(4, -1, 2, 8).transpose(1, 2)
        assert relative(stored, held.k) < 1e-6


def _at(call: Any) -> Tensor:
    kv = call.hop.sources["question"].kv
    return torch.arange(kv.start, kv.start + len(kv))
