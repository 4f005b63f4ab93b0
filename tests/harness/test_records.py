"""Rows survive the round trip, and what cannot be is refused on the way in and on the way out."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judged import judged
from harness.records import HopRecord, Phases, ProgramRun, Route, Row, StateSize, Status
from harness.sandbox.base import Execution, Level, Outcome
from harness.script import Verdict

HOP: dict[str, Any] = {
    "agent": "solver",
    "index": 1,
    "route": Route.reuse,
    "prompt_tokens": 10,
    "shared_tokens": 6,
    "fresh_token_layers": 12,
    "output_tokens": 2,
    "output_ids": [4, 5],
    "ttft_s": 0.1,
    "e2e_s": 0.3,
}
SHADOW: dict[str, Any] = {
    "kv_error_k": [0.1],
    "kv_error_v": [0.2],
    "first_token_kl": 0.0,
    "prefix_match": 2,
    "answer_agrees": True,
    "shadow_ttft_s": 0.4,
}

seconds = st.floats(0, 1e6)
sizes = st.builds(StateSize.of, st.integers(0, 2**40), st.integers(0, 2**40))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def hops(draw: st.DrawFn) -> HopRecord:
    prompt, ttft = draw(st.integers(1, 5000)), draw(seconds)
    output = draw(st.lists(st.integers(0, 50_000), max_size=5))
    shadow = SHADOW if draw(st.booleans()) else {}
    return HopRecord(
        agent=draw(texts),
        index=draw(st.integers(0, 9)),
        route=draw(st.sampled_from(Route)),
        warmup=draw(st.booleans()),
        prompt_tokens=prompt,
        shared_tokens=draw(st.integers(0, prompt)),
        fresh_token_layers=draw(st.integers(0, 10**6)),
        output_tokens=len(output),
        output_ids=output,
        output=draw(texts),
        ttft_s=ttft,
        e2e_s=ttft + draw(seconds),
        phases=Phases(*(draw(seconds) for _ in range(6))),
        state_bytes=draw(st.none() | sizes),
        notes=draw(st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=2)),
        **shadow,
    )


@st.composite
def rows(draw: st.DrawFn) -> Row:
    status = draw(st.sampled_from(Status))
    return Row(
        sample_id=draw(texts),
        repeat=draw(st.integers(0, 3)),
        subject=draw(st.none() | texts),
        status=status,
        prediction=draw(texts),
        correct=draw(st.booleans()) and status is Status.ok,
        raw=draw(texts),
        e2e_s=draw(seconds),
        state_bytes=draw(st.none() | sizes),
        hops=draw(st.lists(hops(), max_size=3)),
    )


@given(rows())
def test_rows_come_back_as_they_were_on_one_line(row: Row) -> None:
    line = msgspec.json.encode(row)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Row) == row


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ttft_s": -0.1}, "ttft_s"),
        ({"ttft_s": math.nan}, "ttft_s"),
        ({"e2e_s": math.inf}, "e2e_s"),
        ({"e2e_s": 0.05}, "shorter"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"shared_tokens": 11}, "shared_tokens"),
        ({"output_tokens": 3}, "output_ids"),
        ({"source_hop": True}, "source hop"),
        ({"notes": {"anchors": math.nan}}, "anchors"),
        ({"first_token_kl": 0.1}, "shadow"),
        ({"shadow_ttft_s": 0.1}, "shadow"),
        ({"answer_agrees": True}, "shadow"),
        ({**SHADOW, "kv_error_v": [math.nan]}, "kv_error_v"),
    ],
)
def test_impossible_hops_are_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        HopRecord(**{**HOP, **change})


def test_the_unchanged_hop_is_accepted() -> None:
    assert not HopRecord(**HOP).shadowed
    assert HopRecord(**HOP, **SHADOW).shadowed
    assert HopRecord(**{**HOP, **SHADOW, "answer_agrees": None}).shadowed


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.ok])
def test_only_ok_rows_are_correct(status: Status) -> None:
    with pytest.raises(ValueError, match="cannot be correct"):
        Row(sample_id="1", status=status, prediction="3", correct=True)


def test_ok_needs_a_prediction_also_when_read() -> None:
    with pytest.raises(ValueError, match="prediction"):
        Row(sample_id="1", status=Status.ok)
    with pytest.raises(msgspec.ValidationError, match="prediction"):
        msgspec.json.decode(b'{"sample_id":"1","status":"ok","prediction":null}', type=Row)


@pytest.mark.parametrize(
    "text",
    [
        b'{"sample_id":"1","status":"fine"}',
        b'{"sample_id":1,"status":"error"}',
        b'{"sample_id":"1","status":"error","extra":0}',
        b'{"sample_id":"1","status":"error","e2e_s":-1}',
        b'{"status":"error"}',
    ],
)
def test_decoding_is_strict(text: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=Row)


def test_phases_add_up_and_refuse_negative_seconds() -> None:
    total = Phases(match_s=1, learn_s=2) + Phases(match_s=3, encode_s=4)
    assert total == Phases(match_s=4, learn_s=2, encode_s=4)
    with pytest.raises(ValueError, match="decode_s"):
        Phases(decode_s=-1)


def test_state_sizes_add_up() -> None:
    assert StateSize.of(3, 4).total == 7
    with pytest.raises(ValueError, match="add up"):
        StateSize(3, 4, 8)


def test_a_program_that_could_not_be_judged_is_an_error() -> None:
    def of(outcome: Outcome) -> tuple[Status, str]:
        status, program, message = judged(Verdict("def f(): ...", False, Execution(outcome, "why", Level.isolated)))
        assert program == ProgramRun(outcome.value, "why", "isolated")
        return status, message

    assert of(Outcome.failed) == of(Outcome.timeout) == (Status.ok, "")
    assert of(Outcome.unsupported) == (Status.error, "unsupported: why")
    assert of(Outcome.broken) == (Status.error, "broken: why")
    assert judged(Verdict(None, False)) == (Status.invalid, None, "")
    assert judged(Verdict("4", True)) == (Status.ok, None, "")
