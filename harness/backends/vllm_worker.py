"""The worker side: the method at work on one rank's pages, and the caches that later hops of open trajectories read.

It carries out orders in the order in which they come, so that all ranks, which get the same ones, do the same.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.backends.vllm_call import Call, Encode
from harness.backends.vllm_orders import (
    Forget,
    Learned,
    Load,
    Observe,
    Order,
    Plan,
    Range,
    Report,
    Route,
    Verdict,
    merged,
)
from harness.backends.vllm_pages import Ended, Pages
from harness.backends.vllm_trajectory import Encoder, Kept, Trajectory, Unencoded
from methods.ability import required
from methods.base import Dense, FreshRows, Hop, Method, Reuse, Rows, Source
from methods.segment import Prompt

Note = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Planned:
    """A hop between its plan and its end; ``rows`` by segment; ``sound`` unless the method failed half way."""

    hop: Hop
    rows: dict[int, Rows]
    sound: bool = True


class Worker:
    """One rank.

    Args:
        pages: the rank's cache.
        limit_bytes: of kept rows; above it the trajectory that was idle longest ends early, and its later hops run
            dense. So it does above ``limit_open`` open trajectories.
        note: takes a traceback where the method fails.
    """

    method: Method

    def __init__(self, pages: Pages, limit_bytes: int, limit_open: int, note: Note) -> None:
        self.pages, self.note = pages, note
        self.limit_bytes, self.limit_open = limit_bytes, limit_open
        self.open: dict[str, Trajectory] = {}
        self.planned: dict[str, Planned] = {}
        self.done: set[str] = set()
        self.bad_blocks: set[int] = set()

    def renew(self, method: Method, seed: int) -> None:
        """Begin afresh, with a copy of a method that is not bound, and without open trajectories.

        Raises:
            ValueError: the method asks for more than vLLM offers, or does not fit the model.
        """
        self.method = copy.deepcopy(method)
        self.method.bind(self.pages.shape, seed)
        if missing := required(self.method):
            names = ", ".join(sorted(missing))
            raise ValueError(f"the method asks for {names}, which vLLM does not offer; use backend=hf")
        self.open.clear()
        self.planned.clear()

    def carry_out(self, orders: Sequence[Order]) -> Report:
        """Learn first, so that plans of the same step see it; load last."""
        verdicts, loaded, failed, learned = dict[str, Verdict](), dict[str, float](), dict[str, str](), {}
        for order in orders:
            if isinstance(order, Observe):
                learned[order.request] = self._observe(order)
                self.done.add(order.request)
            elif isinstance(order, Forget):
                self.planned.pop(order.request, None)
        for order in orders:
            if isinstance(order, Plan):
                verdicts[order.request] = self._plan(order)
        for order in orders:
            if isinstance(order, Load):
                begin = time.perf_counter()
                try:
                    self._load(order)
                except Exception as error:  # the rows are computed instead, the request goes on
                    self.note(traceback.format_exc())
                    failed[order.request] = f"{type(error).__name__}: {error}"
                    first, stop = order.rows
                    size = self.pages.layout.block
                    self.bad_blocks |= set(order.blocks[first // size : -(-stop // size)])
                loaded[order.request] = self._seconds(begin) + loaded.get(order.request, 0.0)
        return Report(verdicts, loaded, failed, learned, self._shrink())

    def end(self, trajectory: str) -> None:
        """The request is over: the method commits, what it kept goes. Harmless for one that is not open."""
        if self.open.pop(trajectory, None) is not None:
            self.method.end(trajectory)

    @property
    def kept_bytes(self) -> int:
        return sum(t.nbytes for t in self.open.values())

    def _open(self, name: str) -> Trajectory:
        """The trajectory, now the one used last."""
        self.open[name] = self.open.pop(name) if name in self.open else Trajectory()
        return self.open[name]

    @torch.no_grad()
    def _plan(self, order: Plan) -> Verdict:
        begin, call = time.perf_counter(), order.call
        trajectory = self._open(call.trajectory)
        prompt = call.prompt(order.ids)
        sources, wrong = self._sources(trajectory, call, prompt, first=False)
        origin, _ = self._sources(trajectory, call, prompt, first=True)
        hop = Hop(call.trajectory, call.hop, call.agent, prompt, sources, origin, call.warmup)
        try:
            plan = self.method.plan(hop, Encoder(trajectory))
        except Unencoded as needed:
            return Verdict(needs=needed.ids, match_s=self._seconds(begin))
        except Exception as error:  # a method that fails costs its hop the reuse, not the server its life
            self.note(traceback.format_exc())
            self.planned[order.request] = Planned(hop, {}, sound=False)
            return Verdict(failure=f"{type(error).__name__}: {error}", match_s=self._seconds(begin))
        notes = {k: float(v) for k, v in self.method.notes().items()}
        if call.warmup or isinstance(plan, Dense):
            self.planned[order.request] = Planned(hop, {})
            refused = isinstance(plan, Dense) and plan.refused
            route = Route.refused if refused and not call.warmup else Route.dense
            return Verdict(route, (), self._seconds(begin), failure=wrong, notes=notes)
        failure = self._unfit(plan, prompt)
        rows = {} if failure else dict(plan.rows)
        self.planned[order.request] = Planned(hop, rows)
        if failure:
            return Verdict(failure=failure, match_s=self._seconds(begin), notes=notes)
        last = len(prompt) - 1  # always runs: it gives the logits
        places = [prompt.placed[i] for i in rows]
        ranges = merged([(p.start, min(p.stop, last)) for p in places])
        route = Route.exact if plan.exact else Route.reuse
        return Verdict(route, ranges, self._seconds(begin), failure=wrong, notes=notes)

    def _unfit(self, plan: Reuse, prompt: Prompt) -> str:
        if not isinstance(plan.schedule, FreshRows):
            return "the plan chooses rows inside the forward, which vLLM does not do; use backend=hf"
        for index, rows in plan.rows.items():
            if len(rows) != len(prompt.placed[index]):
                return f"the plan has {len(rows)} rows for segment {index} of {len(prompt.placed[index])} tokens"
        return ""

    def _sources(
        self, trajectory: Trajectory, call: Call, prompt: Prompt, first: bool
    ) -> tuple[dict[str, Source], str]:
        """What earlier hops hold of the prompt's spans, and which of them holds other tokens."""
        found, wrong = dict[str, Source](), ""
        for piece, place in zip(call.pieces, prompt.placed, strict=True):
            hop = piece.first if first else piece.source
            kept = None if hop is None or not piece.span else trajectory.kept.get((hop, piece.span))
            if kept is None:
                continue
            ids = place.segment.ids
            if kept.ids[: len(ids)] != ids:
                wrong = f"hop {kept.hop} holds other tokens as {piece.span!r} than the prompt shows"
                continue
            found[piece.span] = Source(kept.agent, kept.hop, kept.kv.rows(0, len(ids)))
        return found, wrong

    @torch.no_grad()
    def _load(self, order: Load) -> None:
        planned = self.planned[order.request]
        for index, rows in planned.rows.items():
            place = planned.hop.prompt.placed[index]
            begin, end = max(order.rows[0], place.start), min(order.rows[1], place.stop)
            if begin < end:
                self._place(rows, place.start, (begin, end), order.blocks)

    def _place(self, rows: Rows, start: int, wanted: Range, blocks: Sequence[int]) -> None:
        shape = self.pages.shape
        size = (shape.layers, shape.kv_heads, len(rows), shape.head_dim)
        keys, values = (torch.empty(size, dtype=shape.dtype, device=shape.device) for _ in range(2))
        rows.write(keys, values, start, shape.rope)
        cut = slice(wanted[0] - start, wanted[1] - start)
        self.pages.write(blocks, wanted[0], keys[:, :, cut], values[:, :, cut])

    @torch.no_grad()
    def _observe(self, order: Observe) -> Learned:
        begin, trajectory = time.perf_counter(), self._open(order.call.trajectory)
        layers, output = self.pages.shape.layers, order.ids[order.prompt_tokens :]
        ended = Ended(
            self.pages, order.blocks, order.prompt_tokens, output, order.held, (order.computed,) * layers, order.dense
        )
        planned = self.planned.pop(order.request, None)
        if isinstance(order.call, Encode):
            trajectory.encoded[order.ids[: order.prompt_tokens]] = ended.kv(0, order.prompt_tokens)
            return Learned(self._seconds(begin))
        if planned is not None and planned.sound:
            try:
                self.method.observe(planned.hop, ended)
            except Exception:  # what cannot be learned from is still an answer
                self.note(traceback.format_exc())
        self._keep(order, order.call, trajectory, ended)
        size = self.method.state_bytes()
        if order.call.last:
            self.end(order.call.trajectory)
        return Learned(self._seconds(begin), size.base, size.correction)

    def _keep(self, order: Observe, call: Call, trajectory: Trajectory, ended: Ended) -> None:
        for keep in call.keeps:
            stop = ended.held if keep.stop is None else min(keep.stop, ended.held)
            if stop > keep.start and (keep.until is None or keep.until > call.hop):
                ids, kv = order.ids[keep.start : stop], ended.kv(keep.start, stop)
                trajectory.kept[call.hop, keep.span] = Kept(call.agent, call.hop, keep.until, ids, kv)
        trajectory.close(call.hop)

    def _shrink(self) -> frozenset[str]:
        """End the trajectories that were idle longest until the rest fits."""
        ended, busy = set[str](), {p.hop.trajectory for p in self.planned.values()}
        idle = [name for name in self.open if name not in busy]
        while idle and (len(self.open) > self.limit_open or self.kept_bytes > self.limit_bytes):
            ended.add(idle[0])
            self.end(idle.pop(0))
        return frozenset(ended)

    def _seconds(self, begin: float) -> float:
        if self.pages.shape.device.type == "cuda":
            torch.cuda.synchronize(self.pages.shape.device)
        return time.perf_counter() - begin
