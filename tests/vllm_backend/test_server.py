"""The OpenAI server with the connector inside, found by its entry point or module path, in processes of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY
from hops import ROLES, words

from harness.backends.vllm_gate import refusal

ROOT = Path(__file__).parents[2]
CALL = {"kind": "hop", "trajectory": "t", "hop": 0, "agent": "a", "pieces": [{"tokens": 3}]}


def body(**more: Any) -> dict[str, Any]:
    return {"prompt": [1, 2, 3], "cache_salt": "a", "kv_transfer_params": {"kvcmas": CALL}, **more}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cache_salt": None}, "cache_salt"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"n": 2}, "one prompt"),
        ({"prompt": ["a", "b"]}, "one prompt"),
        ({"kv_transfer_params": {"kvcmas": {**CALL, "hop": "first"}}}, "hop"),
        ({"kv_transfer_params": {"kvcmas": {**CALL, "colour": "red"}}}, "colour"),
    ],
)
def test_what_could_not_be_served_is_refused(change: dict[str, Any], says: str) -> None:
    assert says in str(refusal(body(**change)))


@pytest.mark.parametrize("found", [body(), {"prompt": "hello"}, {"kv_transfer_params": {"other": 1}}, [], None])
def test_everything_else_is_not(found: Any) -> None:
    assert refusal(found) is None


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    pytest.importorskip("vllm", reason="vLLM is not installed here; make setup-vllm")
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words_ = [
        "method=full_reuse",
        "model=tiny",
        f"model.head_dim={TINY.head_dim}",
        f"model.context={TINY.context}",
        "backend.gaps=true",
        "backend.cache_gib=0.1",
        f"port={port}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.serve", *words_],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 400
        while True:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not come up"
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def url(server: tuple[str, subprocess.Popen[bytes]]) -> str:
    return server[0]


def ask(url: str, ids: list[int], **more: Any) -> dict[str, Any]:
    import httpx

    found = {"model": "tiny", "prompt": ids, "max_tokens": 6, "temperature": 0.0, "return_token_ids": True, **more}
    return dict(httpx.post(f"{url}/v1/completions", json=found, timeout=120).json())


def test_two_agents_over_http(url: str) -> None:
    """Reuse, the refusal of an unsalted call, the metrics, and a plain client that nothing of this reaches."""
    import httpx

    question, tail = words("question", 300), words("tail", 9)
    prompts = [[*words(a, ROLES[a]), *question, *tail] for a in ("solver", "critic")]
    before = ask(url, prompts[1])["choices"][0]["token_ids"]
    answers = []
    for hop, (agent, ids) in enumerate(zip(("solver", "critic"), prompts, strict=True)):
        role = ROLES[agent]
        source = {"source": 0, "first": 0} if hop else {}
        span = {"tokens": 300, "span": "question", "producer": "user", **source}
        call = {
            **CALL,
            "hop": hop,
            "agent": agent,
            "pieces": [{"tokens": role}, span, {"tokens": 9}],
            "keeps": [{"span": "question", "start": role, "stop": role + 300}],
            "last": hop == 1,
        }
        unsalted = ask(url, ids, kv_transfer_params={"kvcmas": call})
        assert "cache_salt" in unsalted["error"]["message"]
        answers.append(ask(url, ids, kv_transfer_params={"kvcmas": call}, cache_salt=agent))
    facts = [a["kv_transfer_params"]["kvcmas"] for a in answers]
    assert [f["route"] for f in facts] == ["dense", "reuse"]
    assert (facts[1]["reused"], facts[1]["computed"]) == (300, ROLES["critic"] + 9)
    assert ask(url, prompts[1])["choices"][0]["token_ids"] == before
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    figures = {
        line.partition("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:kvcmas_")
    }
    assert figures["vllm:kvcmas_hops_total"] == 2
    assert figures["vllm:kvcmas_reused_tokens_total"] == 300
    assert figures["vllm:kvcmas_computed_tokens_total"] == len(prompts[0]) + ROLES["critic"] + 9
    assert figures["vllm:kvcmas_load_seconds_total"] > 0


def test_plain_answers_beside_agents(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts that the agents read, asked for by a client that knows nothing of them: same tokens, same scores."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import mixed_load

    tally = mixed_load.run(url, None, "tiny", requests=48, tokens=6, workers=6, pid=None)
    assert (tally.plain, tally.calls) == (24, 24)
    assert not tally.lost
    assert not tally.differs
    monkeypatch.setattr(mixed_load, "complete", lambda *_: ((1,), (0.0, next(numbers))))
    numbers = iter(range(10_000))
    assert len(mixed_load.run(url, None, "tiny", requests=8, tokens=1, workers=1, pid=None).differs) == 4


def test_a_server_that_is_killed_is_reported(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    """Last in this file: nothing is served after it."""
    url, process = server
    command = [sys.executable, "examples/four_agents.py", "--url", url, "--model", "tiny", "--requests", "1000"]
    client = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline().startswith("request-0 solver")
    process.kill()
    _, said = client.communicate(timeout=120)
    assert client.returncode == 1
    assert "failed" in said
    assert "Traceback" not in said
