"""Four agents over one question, against ``python -m harness.serve``: prompts as token ids, answers streamed.

    python examples/four_agents.py [--url http://127.0.0.1:8000] [--model smollm2] [--requests 4]

Every agent reads the question and what the agents before it wrote, under its own role prompt. Each call tells the
server which tokens are shared and which call of the trajectory holds them, and what of its own cache later ones read.
Needs the packages ``openai`` and ``httpx``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import OpenAI, OpenAIError

AGENTS = {
    "solver": "You solve word problems step by step.",
    "critic": "You look for mistakes in what others wrote.",
    "checker": "You check every number once more.",
    "writer": "You write the final answer in one sentence.",
}
QUESTIONS = (
    "A farmer has 17 sheep and buys 5 more every week for three weeks. How many sheep does the farmer have then?",
    "A train needs 2 hours for 160 km. How far does it get in 5 hours at the same speed?",
    "Ann has 3 dogs and 2 cats. Every animal eats 2 bowls a day. How many bowls are that in a week?",
    "A box holds 12 pencils and costs 3 euros. What do 60 pencils cost?",
)


@dataclass
class Prompt:
    """Token ids, and which of them are what."""

    ids: list[int] = field(default_factory=list)
    pieces: list[dict[str, Any]] = field(default_factory=list)

    def private(self, ids: Sequence[int]) -> Prompt:
        self.ids += ids
        self.pieces.append({"tokens": len(ids)})
        return self

    def shared(self, ids: Sequence[int], span: str, producer: str, source: int | None, first: int | None) -> Prompt:
        self.ids += ids
        piece = {"tokens": len(ids), "span": span, "producer": producer, "source": source, "first": first}
        self.pieces.append(piece)
        return self


@dataclass
class Workflow:
    """A client of the server."""

    url: str
    model: str
    tokens: int
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.openai = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=600)

    def encode(self, text: str) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        answer = httpx.post(f"{self.url}/tokenize", json=body, timeout=60).raise_for_status()
        return list(answer.json()["tokens"])

    def run(self, trajectory: str, question: str) -> None:
        """All four agents, one after another."""
        asked, outputs = self.encode(f"Question: {question}"), list[tuple[str, list[int]]]()
        for hop, (agent, role) in enumerate(AGENTS.items()):
            prompt = Prompt().private(self.encode(f"<|im_start|>system\n{role}<|im_end|>\n<|im_start|>user\n"))
            start = len(prompt.ids)
            prompt.shared(asked, "question", "user", hop - 1 if hop else None, 0 if hop else None)
            for index, (writer, ids) in enumerate(outputs):
                prompt.private(self.encode(f"\n\nThe {writer} wrote:\n"))
                prompt.shared(ids, f"output:{writer}", writer, index, index)
            prompt.private(self.encode("\n\nYour turn.<|im_end|>\n<|im_start|>assistant\n"))
            call = {
                "kind": "hop",
                "trajectory": trajectory,
                "hop": hop,
                "agent": agent,
                "pieces": prompt.pieces,
                "keeps": [
                    {"span": "question", "start": start, "stop": start + len(asked), "until": hop + 1},
                    {"span": f"output:{agent}", "start": len(prompt.ids)},
                ],
                "last": hop == len(AGENTS) - 1,
            }
            outputs.append((agent, self.answer(agent, prompt, call)[:-1]))  # the last token has no cache row

    def answer(self, agent: str, prompt: Prompt, call: dict[str, Any]) -> list[int]:
        """One streamed call."""
        begin, first, ids, text = time.perf_counter(), None, list[int](), ""
        stream = self.openai.completions.create(
            model=self.model,
            prompt=prompt.ids,
            max_tokens=self.tokens,
            temperature=0.0,
            stream=True,
            extra_body={
                "kv_transfer_params": {"kvcmas": call},
                "cache_salt": f"kvcmas:{agent}",
                "return_token_ids": True,
            },
        )
        for chunk in stream:
            for choice in chunk.model_dump()["choices"]:
                first = first or time.perf_counter()
                ids += choice.get("token_ids") or []
                text += choice["text"]
        ttft_s = (first or time.perf_counter()) - begin
        self.say(
            f"{call['trajectory']} {agent:8} {len(prompt.ids):5} tokens, first after {1000 * ttft_s:6.0f} ms: "
            f"{text.strip()[:60]!r}"
        )
        return ids


def totals(url: str) -> dict[str, float]:
    """What the server has reused and computed so far."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    found = (line.rsplit(" ", 1) for line in lines if line.startswith("vllm:kvcmas_"))
    return {name.partition("{")[0].removeprefix("vllm:kvcmas_"): float(value) for name, value in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    given = parser.parse_args()
    workflow, done = Workflow(given.url, given.model, given.tokens), 0
    try:
        for done in range(given.requests):
            workflow.run(f"request-{done}", QUESTIONS[done % len(QUESTIONS)])
        figures = totals(given.url)
    except (OpenAIError, httpx.HTTPError) as error:
        print(f"request-{done} failed: {type(error).__name__}: {error} (does the server run, and serve --model? "
              "Start it with python -m harness.serve method=kvcmas)", file=sys.stderr)  # fmt: skip
        return 1
    for name, value in figures.items():
        if not name.endswith("_created"):
            print(f"{name:28} {value:12.6g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
