"""How many tokens of a call are computed, reused and encoded under a method's recipe, as calls come in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import takewhile

from harness.records import Route
from harness.service import Call
from harness.sim.costs import Recipe, Work
from methods.segment import Private


@dataclass
class Accounts:
    """What caches hold and which calls were refused; for one method, from cold.

    Attributes:
        encode_tokens: of a context-free encode on the first hop; None: the recipe's share of its shared tokens.
    """

    recipe: Recipe
    encode_tokens: int | None = None
    held: set[tuple[str, int, str]] = field(default_factory=set)
    roles: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    pages: set[int] = field(default_factory=set)
    counted: int = 0
    trajectories: int = 0

    def work(self, call: Call) -> Work:
        """What the call comes to if it starts now; counts it among those that may be refused."""
        recipe, prompt = self.recipe, len(call.prompt)
        handed = {s for s, hop in call.upstream.items() if (call.trajectory, hop, s) in self.held}
        over = sum(len(p) for p in call.prompt.shared() if p.span is not None and p.span.id in handed)
        could = over > 0 and recipe.reuse != "nothing" and self.trajectories >= recipe.needs
        refused = self._refused(could) and not call.warmup
        reuses = could and not refused and not call.warmup
        exact, reused = 0, 0
        if recipe.reuse == "prefix":
            clean = prompt - (round(recipe.recompute * over) if reuses else 0)
            if not refused and not call.warmup:
                pages = self._chain(call.prompt.ids[:clean])
                found = sum(1 for _ in takewhile(self.pages.__contains__, pages))
                exact = min(found * recipe.page, prompt - 1)
                self.pages.update(pages)
        elif reuses:
            reused = over - round(recipe.recompute * over)
        role = self._role(call)
        if role is not None and role in self.roles and not call.warmup:
            exact += len(role[1]) * (recipe.role_reuse if reuses else recipe.role_dense)
        if reuses and recipe.reuse == "spans":
            exact += round((1 - recipe.glue) * (prompt - over - len(role[1] if role else ())))
        computed = max(1, prompt - exact - reused)
        before = prompt - computed  # computed rows count as the last ones: those after the shared text are
        route = Route.reuse if reuses else Route.fallback if refused and could else Route.dense
        return Work(
            route=route,
            prompt=prompt,
            computed=computed,
            reused=reused,
            attended=computed * (before + computed / 2),
            shared=sum(len(p) for p in call.prompt.shared()),
            encoded=0 if call.warmup else self._encoded(call, reuses),
            decoded=call.output_tokens - 1,
            context=(call.output_tokens - 1) * (prompt + call.output_tokens / 2),
        )

    def ended(self, call: Call) -> None:
        """Later hops find what this one keeps."""
        self.held.update((call.trajectory, call.index, keep.span) for keep in call.keeps)
        role = self._role(call)
        if role is not None:
            self.roles.add(role)

    def end(self, trajectory: str) -> None:
        self.held = {key for key in self.held if key[0] != trajectory}
        self.trajectories += 1

    def _refused(self, could: bool) -> bool:
        """The released script's rule: floor(k p) steps up at call k, and the first call."""
        share = self.recipe.refused
        if share <= 0 or not (could or self.recipe.refused_among == "all"):
            return False
        k, self.counted = self.counted, self.counted + 1
        return k == 0 or math.floor(k * share) != math.floor((k - 1) * share)

    def _encoded(self, call: Call, reuses: bool) -> int:
        shared = sum(len(p) for p in call.prompt.shared())
        if call.index == 0:
            share = self.recipe.encode_first
            return round(share * (shared if self.encode_tokens is None else self.encode_tokens))
        return round(self.recipe.encode_later * shared) if reuses else 0

    def _role(self, call: Call) -> tuple[str, tuple[int, ...]] | None:
        first = call.prompt.segments[0]
        return (call.agent, first.ids) if isinstance(first, Private) and len(call.prompt.segments) > 1 else None

    def _chain(self, ids: tuple[int, ...]) -> list[int]:
        """A name for every whole page, which depends on all ids up to its end."""
        names, page, before = list[int](), self.recipe.page, 0
        for start in range(0, len(ids) - page + 1, page):
            before = hash((before, ids[start : start + page]))
            names.append(before)
        return names
