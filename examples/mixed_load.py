"""Plain requests beside agents that reuse, against ``python -m harness.serve``: is any plain answer touched?

    python examples/mixed_load.py [--url http://127.0.0.1:8000] [--stock URL] [--requests 1000] [--pid PID]

Half of the requests are plain completions of the very texts that the agents read, so that a block of theirs would fit;
the others are calls of four-agent workflows. Every plain answer must be, token for token and log-probability for
log-probability, the one that ``--stock`` gives (a vLLM server without any method; without it, what the server itself
answered before the agents came). Prints what was lost and what differs, and with ``--pid`` the memory of the server's
processes as the requests go by. Exit code 1 if anything was lost or differs. Needs ``openai`` and ``httpx``.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from four_agents import AGENTS, QUESTIONS, Workflow, totals

Answer = tuple[tuple[int, ...], tuple[float, ...]]
"""Token ids and their log-probabilities."""


@dataclass
class Tally:
    """What became of the requests, counted from many threads."""

    every: int
    memory: Callable[[], int | None]
    plain: int = 0
    calls: int = 0
    lost: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    held: list[tuple[int, int]] = field(default_factory=list)  # requests so far, bytes
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, plain: int = 0, calls: int = 0, lost: str = "", differs: str = "") -> None:
        with self.lock:
            before = self.plain + self.calls
            self.plain += plain
            self.calls += calls
            self.lost += [lost] * bool(lost)
            self.differs += [differs] * bool(differs)
            done = self.plain + self.calls
            if done // self.every > before // self.every:
                held = self.memory()
                if held is not None:
                    self.held.append((done, held))
                memory = "" if held is None else f", {held / 2**20:.0f} MiB"
                print(f"{done} requests, {len(self.lost)} lost, {len(self.differs)} differ{memory}", flush=True)


def complete(url: str, model: str, text: str, tokens: int) -> Answer:
    """A plain completion, as of any client that knows nothing of agents."""
    body = {"model": model, "prompt": text, "max_tokens": tokens, "temperature": 0.0, "logprobs": 0,
            "return_token_ids": True}  # fmt: skip
    found: dict[str, Any] = httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status().json()
    choice = found["choices"][0]
    return tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])


def texts(count: int, seed: int) -> list[str]:
    """Questions, told apart by a number so that the server's own cache does not answer them all."""
    draw = random.Random(seed)
    return [f"Case {draw.randrange(10**6)}. {draw.choice(QUESTIONS)}" for _ in range(count)]


def prompts(text: str) -> list[str]:
    """What each agent reads of ``text``, as plain text: its role prompt and the question."""
    return [f"<|im_start|>system\n{role}<|im_end|>\n<|im_start|>user\nQuestion: {text}" for role in AGENTS.values()]


def resident(pid: int) -> int:
    """Bytes that a process and those it started hold in memory, shared pages counted once (Linux)."""
    found = 0
    for process in _family(pid):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        found += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            yield from _family(int(child))


def run(url: str, stock: str | None, model: str, requests: int, tokens: int, workers: int, pid: int | None) -> Tally:
    """Send ``requests``, half of them plain, in an order drawn at random; ``workers`` are on their way at once."""
    plain = [p for text in texts(requests // 8 + 1, seed=0) for p in prompts(text)][: requests // 2]
    distinct = list(dict.fromkeys(plain))
    expected = {p: complete(stock or url, model, p, tokens) for p in distinct}
    tally = Tally(max(1, requests // 10), lambda: None if pid is None else resident(pid))
    workflow = Workflow(url, model, tokens, say=lambda _: tally.add(calls=1))

    def ask(prompt: str) -> None:
        try:
            differs = complete(url, model, prompt, tokens) != expected[prompt]
            tally.add(plain=1, differs=prompt if differs else "")
        except (httpx.HTTPError, KeyError) as error:
            tally.add(plain=1, lost=f"{type(error).__name__}: {error}")

    def agents(name: str, text: str) -> None:
        try:
            workflow.run(name, text)
        except Exception as error:  # whatever the client library raises: the request is lost, the others go on
            tally.add(lost=f"{name}: {type(error).__name__}: {error}")

    asked = texts(requests // 8, seed=0)  # those of the plain requests
    jobs: list[tuple[Any, ...]] = [(ask, p) for p in plain]
    jobs += [(agents, f"mixed-{number}", text) for number, text in enumerate(asked)]
    random.Random(1).shuffle(jobs)
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(*job) for job in jobs]:
            done.result()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--stock", help="a vLLM server without a method, for the answers to compare with")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--workers", type=int, default=8, help="requests on their way at once")
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is watched")
    given = parser.parse_args()
    try:
        tally = run(given.url, given.stock, given.model, given.requests, given.tokens, given.workers, given.pid)
        figures = totals(given.url)
    except httpx.HTTPError as error:
        print(f"no server answers ({error}); start one: python -m harness.serve method=kvcmas", file=sys.stderr)
        return 2
    print(f"{tally.plain} plain requests, {tally.calls} calls of agents")
    for name in ("reused_tokens_total", "computed_tokens_total", "fallbacks_total"):
        print(f"{name:24} {figures.get(name, 0.0):12.0f}")
    for what, found in (("lost", tally.lost), ("differs from the plain server", tally.differs)):
        print(f"{what}: {len(found)}", *dict.fromkeys(found[:5]), sep="\n  ")
    return 1 if tally.lost or tally.differs else 0


if __name__ == "__main__":
    sys.exit(main())
