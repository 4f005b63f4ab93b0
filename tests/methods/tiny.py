"""An independent oracle: a small causal transformer with grouped-query attention and rotary positions, and an engine
over it. Nothing here uses the project's kernels: rotation, attention and masks are written out again in float64 or
float32, so that agreement means something."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from methods.base import KV, Dense, Hop, Plan, Reuse, Rope, Shape, Source
from methods.segment import Private, Prompt, Shared, Span

VOCABULARY = 97


class Tiny:
    """Weights of a decoder: L layers, 4 query heads over H key/value heads, key and value biases."""

    def __init__(self, layers: int = 4, heads: int = 2, dim: int = 8, scaling: float = 1.0, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)

        def matrix(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw) / math.sqrt(shape[0])

        self.layers, self.heads, self.queries, self.dim, self.hidden = layers, heads, 2 * heads, dim, 4 * dim
        width, wide = heads * dim, self.queries * dim
        self.embedding = torch.randn(VOCABULARY, self.hidden, generator=draw)
        self.blocks = [
            (
                matrix(self.hidden, wide),
                matrix(self.hidden, width),
                matrix(self.hidden, width),
                torch.randn(width, generator=draw),
                torch.randn(width, generator=draw),
                matrix(wide, self.hidden),
                matrix(self.hidden, 2 * self.hidden),
                matrix(2 * self.hidden, self.hidden),
            )
            for _ in range(layers)
        ]
        self.head = matrix(self.hidden, VOCABULARY)
        self.scaling = scaling
        self.inv_freq = 1.0 / (1000.0 ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))

    def shape(self, dtype: torch.dtype = torch.float32) -> Shape:
        rope = Rope(self.inv_freq, self.scaling)
        return Shape(self.layers, self.heads, self.dim, self.hidden, dtype, torch.device("cpu"), rope)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate ``[H, R, D]`` as complex numbers: pairs (i, i + D/2)."""
        half = self.dim // 2
        angle = positions.double()[:, None] * self.inv_freq.double()
        z = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(torch.ones_like(angle), angle)
        return (self.scaling * torch.cat([z.real, z.imag], -1)).to(x.dtype)

    def forward(self, ids: Sequence[int], k: Tensor, v: Tensor, fresh: Sequence[int]) -> Tensor:
        """Run rows ``fresh`` of a prompt over ``k``, ``v [L, H, N, D]``, which hold the other rows and are filled;
        returns the logits of the last fresh row. Query row i sees cache rows up to i."""
        rows = torch.tensor(list(fresh))
        x = self.embedding[torch.tensor([ids[i] for i in fresh])]
        for layer, (wq, wk, wv, bk, bv, wo, up, down) in enumerate(self.blocks):
            y = _norm(x)
            q = self.turn((y @ wq).view(len(rows), self.queries, self.dim).transpose(0, 1), rows)
            k[layer][:, rows] = self.turn((y @ wk + bk).view(len(rows), self.heads, self.dim).transpose(0, 1), rows)
            v[layer][:, rows] = (y @ wv + bv).view(len(rows), self.heads, self.dim).transpose(0, 1)
            groups = self.queries // self.heads
            seen = int(rows.max()) + 1
            every_k = k[layer, :, :seen].repeat_interleave(groups, 0)
            every_v = v[layer, :, :seen].repeat_interleave(groups, 0)
            score = q @ every_k.mT / math.sqrt(self.dim)
            future = torch.arange(seen)[None] > rows[:, None]
            out = score.masked_fill(future, -torch.inf).softmax(-1) @ every_v
            x = x + out.transpose(0, 1).reshape(len(rows), -1) @ wo
            x = x + torch.nn.functional.silu(_norm(x) @ up) @ down
        return (_norm(x[-1]) @ self.head).float()


def _norm(x: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt()


@dataclass
class Ran:
    """What the engine did (the Executed contract)."""

    prompt_tokens: int
    output_ids: list[int]
    fresh_rows: list[int]
    dense: bool
    logits: Tensor
    k: Tensor
    v: Tensor

    def kv(self, start: int, stop: int) -> KV:
        return KV(self.k[:, :, start:stop].clone(), self.v[:, :, start:stop].clone(), start)

    def hidden(self, layer: int, start: int, stop: int) -> Tensor:
        raise NotImplementedError


@dataclass
class TinyEngine:
    """Executes plans with the trivial row schedule; cache rows nobody sets hold NaN."""

    model: Tiny
    new_tokens: int = 4
    dtype: torch.dtype = torch.float32
    encodes: list[tuple[int, ...]] = field(default_factory=list)

    def encode(self, ids: Sequence[int]) -> KV:
        self.encodes.append(tuple(ids))
        k, v = self.cache(len(ids))
        self.model.forward(ids, k, v, range(len(ids)))
        return KV(k.to(self.dtype), v.to(self.dtype), 0)

    def cache(self, rows: int) -> tuple[Tensor, Tensor]:
        shape = (self.model.layers, self.model.heads, rows, self.model.dim)
        return torch.full(shape, torch.nan), torch.full(shape, torch.nan)

    def run(self, prompt: Prompt, plan: Plan) -> Ran:
        ids = list(prompt.ids)
        k, v = self.cache(len(ids) + self.new_tokens)
        fresh = list(range(len(ids)))
        if isinstance(plan, Reuse):
            held: set[int] = set()
            for index, rows in plan.rows.items():
                place = prompt.placed[index]
                assert len(rows) == len(place)
                at_k, at_v = (torch.full_like(x[:, :, place.start : place.stop], torch.nan) for x in (k, v))
                at_k, at_v = at_k.to(self.dtype), at_v.to(self.dtype)
                rows.write(at_k, at_v, place.start, self.model.shape().rope)
                k[:, :, place.start : place.stop], v[:, :, place.start : place.stop] = at_k.float(), at_v.float()
                held.update(range(place.start, place.stop))
            fresh = [i for i in fresh if i not in held or i == len(ids) - 1]
        logits = self.model.forward(ids, k, v, fresh)
        out, row = [int(logits.argmax())], logits
        while len(out) < self.new_tokens:
            ids.append(out[-1])
            row = self.model.forward(ids, k, v, [len(ids) - 1])
            out.append(int(row.argmax()))
        held_rows = len(prompt) + len(out) - 1
        dense = isinstance(plan, Dense) or plan.exact
        k, v = k[:, :, :held_rows].to(self.dtype), v[:, :, :held_rows].to(self.dtype)
        return Ran(len(prompt), out, [len(fresh)] * self.model.layers, dense, logits, k, v)


@dataclass
class Agent:
    """One agent of a tiny workflow: its role prompt, the glue before each upstream output, its closing text."""

    name: str
    role: tuple[int, ...]
    glue: tuple[int, ...] = (11, 12)
    tail: tuple[int, ...] = (13, 14, 15)


@dataclass
class Call:
    """One executed hop with everything a test may ask about."""

    hop: Hop
    plan: Plan
    ran: Ran
    notes: Mapping[str, float]


AGENTS = (
    Agent("a", (1, 2, 3, 4)),
    Agent("b", (5, 6, 7, 8, 9, 10)),
    Agent("c", (20, 21, 22)),
)


def prompt_of(agent: Agent, question: tuple[int, ...], outputs: Sequence[tuple[str, tuple[int, ...]]]) -> Prompt:
    """role . question . (glue . output) per upstream agent . tail, as in the paper's fully connected graph."""
    segments: list[Private | Shared] = [
        Private(agent.role),
        Shared(Span("question", question, "user", placeholder=(90, 91))),
    ]
    for name, ids in outputs:
        segments += [Private(agent.glue), Shared(Span(f"output:{name}", ids, name, placeholder=(92, 93)))]
    return Prompt((*segments, Private(agent.tail)))


def trajectory(
    method: object,
    engine: TinyEngine,
    question: Sequence[int],
    name: str = "t0",
    agents: Sequence[Agent] = AGENTS,
    warmup: bool = False,
    finish: bool = True,
) -> list[Call]:
    """Run one request through a chain in which every agent reads the question and all earlier outputs."""
    sources: dict[str, Source] = {}
    first: dict[str, Source] = {}
    outputs: list[tuple[str, tuple[int, ...]]] = []
    calls = []
    for index, agent in enumerate(agents):
        prompt = prompt_of(agent, tuple(question), outputs)
        hop = Hop(name, index, agent.name, prompt, dict(sources), dict(first), warmup)
        plan = method.plan(hop, engine)  # type: ignore[attr-defined]
        ran = engine.run(prompt, plan)
        notes = method.notes()  # type: ignore[attr-defined]
        method.observe(hop, ran)  # type: ignore[attr-defined]
        calls.append(Call(hop, plan, ran, notes))
        place = prompt.placed[1]
        sources["question"] = Source(agent.name, index, ran.kv(place.start, place.stop))
        first.setdefault("question", sources["question"])
        rows = ran.kv(len(prompt), len(prompt) + len(ran.output_ids) - 1)
        outputs.append((agent.name, tuple(ran.output_ids[:-1])))
        span = f"output:{agent.name}"
        sources[span] = first[span] = Source(agent.name, index, rows)
    if finish:
        method.end(name)  # type: ignore[attr-defined]
    return calls


def questions(count: int, length: int = 20, seed: int = 5) -> list[list[int]]:
    """Distinct random questions."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 80, (count, length), generator=draw).tolist()


def relative(x: Tensor, y: Tensor) -> float:
    """Relative root mean square error of x against y; NaN on either side shows as NaN."""
    x, y = x.double(), y.double()
    return float((x - y).norm() / y.norm().clamp_min(1e-30))


def rope(dim: int, scaling: float = 1.0) -> Rope:
    return Tiny(layers=1, dim=dim, scaling=scaling).shape().rope
