"""vLLM as a service: many calls in one batch, on wall time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from harness.backends.hf_facts import ModelFacts
from harness.backends.vllm_call import Call as Wire
from harness.backends.vllm_call import Keep, Piece
from harness.backends.vllm_figures import Figures
from harness.provenance import RanModel
from harness.records import Phases, Route
from harness.service import Answer, Call, Failed
from harness.serving import EngineFigures
from harness.traffic.occupancy import Occupancy
from kernels.dispatch import describe
from methods.base import Method, Snapshot, StateBytes

if TYPE_CHECKING:
    from harness.backends.vllm_engine import Engine, Flight


@dataclass
class Log(Occupancy):
    """Since :meth:`VLLMService.begin`: how long the engine worked, and what it held."""

    busy_s: float = 0.0
    held_bytes_peak: int = 0
    kv_usage_peak: float = 0.0
    hit_tokens: int = 0
    query_tokens: int = 0
    before: Figures = field(default_factory=Figures)


class VLLMService:
    """See :class:`harness.service.Service`. Calls may also be ``plain``, of which no method hears, and stop early.

    Args:
        scope: what vLLM's own prefix cache may share, see conf/backend/vllm.yaml.
    """

    simulated = False
    label = "vllm"

    def __init__(
        self, engine: Engine, facts: ModelFacts, stop_ids: frozenset[int], method: Method, seed: int, scope: str
    ) -> None:
        self.engine, self.facts, self.stop_ids = engine, facts, stop_ids
        self.pristine, self.seed, self.scope = method, seed, scope
        self.reset(0)

    @property
    def layers(self) -> int:
        return self.facts.layers

    @property
    def model(self) -> RanModel:
        config = self.engine.vllm.vllm_config
        device = config.device_config.device
        return RanModel(
            id=self.facts.name,
            revision=self.facts.revision,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            device=str(device),
            attention="vllm",
            kernels=describe(device),
        )

    def reset(self, repeat: int) -> None:
        self.engine.drain()
        self.engine.vllm.reset_prefix_cache()
        self.engine.directory.forget()
        self.engine.ask("renew", self.pristine, self.seed + repeat)
        self.repeat = repeat
        self.calls: dict[str, tuple[Call, Flight]] = {}
        self.failed: list[Failed] = []
        self.begin()

    def begin(self) -> None:
        self.epoch = self.engine.now()
        self.log = Log(before=Figures(**asdict(self.engine.directory.figures)))

    def now(self) -> float:
        return self.engine.now() - self.epoch

    def submit(self, call: Call, stop_ids: frozenset[int] = frozenset(), plain: bool = False) -> None:
        try:
            wire, salt = (None, self._salt(call)) if plain else (_wire(call), self._salt(call))
            flight = self.engine.send(call.prompt.ids, call.output_tokens, stop_ids, wire, salt)
        except Exception as error:  # a call that vLLM does not take is an answer of its own; the others go on
            self.failed.append(Failed.of(call, self.now(), error))
            return
        self.calls[call.id] = call, flight

    def advance(self, until_s: float) -> Sequence[Answer | Failed]:
        while True:
            if out := self._ended():
                return out
            if self.now() >= until_s:
                return ()
            if self.engine.busy:
                self._step()
            elif until_s == float("inf"):
                return ()
            else:
                time.sleep(max(0.0, until_s - self.now()))

    def end(self, trajectory: str) -> None:
        self.engine.ask("end", trajectory)
        self.engine.directory.forget(trajectory)

    def state_bytes(self) -> StateBytes:
        found: list[StateBytes] = self.engine.ask("state_bytes")
        return StateBytes(sum(s.base for s in found), sum(s.correction for s in found))

    def snapshot(self) -> Snapshot | None:
        """State of the method on all ranks; None for one that learns nothing."""
        found: list[Snapshot | None] = self.engine.ask("snapshot")
        if found[0] is None:
            return None
        parts = [part for part in found if part is not None]
        blobs = {f"{rank}.{name}": blob for rank, part in enumerate(parts) for name, blob in part.blobs.items()}
        return Snapshot({"ranks": [part.meta for part in parts]}, blobs)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from :meth:`snapshot`, right after a reset."""
        metas = snapshot.meta["ranks"]
        parts = [
            Snapshot(meta, {n.removeprefix(f"{r}."): b for n, b in snapshot.blobs.items() if n.startswith(f"{r}.")})
            for r, meta in enumerate(metas)
        ]
        self.engine.ask("restore_rank", parts)

    def figures(self) -> EngineFigures:
        log = self.log
        limits = self.engine.vllm.vllm_config.scheduler_config
        now, before = asdict(self.engine.directory.figures), asdict(log.before)
        return replace(
            log.figures(self.now(), log.busy_s),
            held_bytes_peak=log.held_bytes_peak,
            kv_usage_peak=log.kv_usage_peak,
            prefix_hit_tokens=log.hit_tokens,
            prefix_query_tokens=log.query_tokens,
            slots=limits.max_num_seqs,
            step_tokens=limits.max_num_batched_tokens,
            more={name: float(value - before[name]) for name, value in now.items() if not name.endswith("_bytes")},
        )

    def _step(self) -> None:
        begin = self.now()
        self.engine.step()
        self.log.busy_s += self.now() - begin
        self.log.held_bytes_peak = max(self.log.held_bytes_peak, sum(self.engine.ask("kept_bytes")))
        self.log.kv_usage_peak = max(self.log.kv_usage_peak, self.engine.usage)

    def _ended(self) -> list[Answer | Failed]:
        out: list[Answer | Failed] = [*self.failed]
        self.failed.clear()
        for name in [name for name, (_, flight) in self.calls.items() if flight.ended]:
            call, flight = self.calls.pop(name)
            answer = self._answer(call, flight)
            self.log.waiting.append((answer.dispatched_s, answer.started_s))
            self.log.running.append((answer.started_s, answer.ended_s))
            self.log.hit_tokens += int(flight.facts.get("local", 0))
            self.log.query_tokens += flight.prompt_tokens
            out.append(answer)
        return out

    def _answer(self, call: Call, flight: Flight) -> Answer:
        facts: dict[str, Any] = dict(flight.facts)
        assert flight.first_token_s is not None
        assert flight.ended_s is not None
        sent, first, ended = (t - self.epoch for t in (flight.sent_s, flight.first_token_s, flight.ended_s))
        started = max(sent, float(facts.get("started_s", flight.sent_s)) - self.epoch)
        match_s, load_s, encode_s = (float(facts.get(n, 0.0)) for n in ("match_s", "load_s", "encode_s"))
        learn_s = flight.learned.seconds if flight.learned is not None else 0.0
        notes = {k: float(v) for k, v in facts.get("notes", {}).items()}
        if facts.get("failure"):
            notes["denied"] = 1.0
        return Answer(
            id=call.id,
            route=Route(facts.get("route", "dense")),
            dispatched_s=sent,
            started_s=started,
            first_token_s=first,
            ended_s=ended,
            learned_s=max(ended, (flight.learned_s or flight.ended_s) - self.epoch),
            output_ids=flight.output_ids,
            fresh_token_layers=int(facts.get("computed", flight.prompt_tokens)) * self.layers,
            phases=Phases(
                match_s=match_s,
                encode_s=encode_s,
                assemble_s=load_s,
                prefill_s=max(0.0, first - started - match_s - load_s - encode_s),
                decode_s=ended - first,
                learn_s=learn_s,
            ),
            notes=notes,
        )

    def _salt(self, call: Call) -> str | None:
        if self.scope == "shared":
            return None
        which = call.agent if self.scope == "agent" else f"{call.trajectory}/{call.id}"
        return f"kvcmas/{self.repeat}/{which}"


def _wire(call: Call) -> Wire:
    """The call as the connector hears it."""
    pieces = []
    for placed in call.prompt.placed:
        span = placed.span
        if span is None:
            pieces.append(Piece(len(placed)))
        else:
            source, first = call.upstream.get(span.id), call.first.get(span.id)
            pieces.append(Piece(len(placed), span.id, span.producer, source, first, span.placeholder))
    keeps = tuple(Keep(keep.span, keep.start, keep.stop, keep.until) for keep in call.keeps)
    return Wire(call.trajectory, call.index, call.agent, tuple(pieces), keeps, call.warmup)
