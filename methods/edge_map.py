"""What one edge knows: a linear map from features of a token's source cache to what the reader's context adds to it.

Sums of squares and products over all dense hops (they fade over ``memory`` requests), a ridge solution of them at a
lower rank, and how good its predictions were. Nothing grows with context length or with requests. The first requests
wait, at most ``WAITING`` of their rows, until there are enough of them to choose the basis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.regression import Spectrum, leverage
from methods.basis import Basis
from methods.evidence import Evidence, Risk
from methods.lesson import PARTS, Lesson, Settings

PENALTIES = (10.0, 100.0, 1000.0)  # features have unit mean square, so these are rows' worth of doubt
FIRST = 1  # index of the penalty before any has been compared
WAITING = 512  # rows kept until the basis is chosen
JUDGED = 512  # rows of a hop at most that are predicted before they are learned
VOTING = 64  # rows of a hop at most on which penalties are compared
CHUNK = 1024  # rows learned at once


@dataclass(frozen=True, eq=False)
class Solution:
    """``inverse`` fp32 ``[p, p]`` of the penalised Gram matrix; fp32 ``left [p, r]`` and ``right [r, G C]``."""

    inverse: Tensor
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Correction:
    """A predicted correction of T rows: ``left`` fp32 ``[T, r]`` times ``right`` fp32 ``[r, G C]``.

    Attributes:
        risk: fp32 ``[T]``, relative energy that is expected to remain.
        error: relative error expected of the whole span, with a margin: root mean square over keys, values, layers.
        shares: fp32 ``[G]``, what of the map's output is applied (it is contained in ``right``).
    """

    left: Tensor
    right: Tensor
    risk: Tensor
    error: float
    shares: Tensor


@dataclass(frozen=True, eq=False)
class Learned:
    """Everything after the basis is chosen.

    Attributes:
        gram: fp64 ``[p, p]``; cross: fp32 ``[p, G C]``; level: fp64 ``[G + 1]``, faded energy of exact rows, and rows.
        scores: fp64 ``[penalties]``, faded relative energy that each left on requests it had not seen.
        solved: requests seen by the solution.
    """

    basis: Basis
    gram: Tensor
    cross: Tensor
    level: Tensor
    scores: Tensor
    solution: Solution
    evidence: Evidence
    risk: Risk
    solved: int


@dataclass(frozen=True, eq=False)
class EdgeMap:
    """Immutable: :meth:`after` gives a new one, so that a snapshot of an earlier state stays true.

    Attributes:
        seen: dense requests so far. last: the latest of them.
        waiting: their rows, until the basis is chosen.
    """

    settings: Settings
    seen: int = 0
    last: str = ""
    waiting: tuple[Lesson, ...] = ()
    learned: Learned | None = None

    def correction(self, source: Tensor, distance: Tensor) -> Correction | None:
        """For tapped rows ``[T, S]``; None while the basis is not chosen."""
        if self.learned is None:
            return None
        known = self.learned
        features = known.basis.features(source, distance)
        shares = known.evidence.shares() if self.settings.shrink else torch.ones_like(known.level[:-1]).float()
        risk = known.risk.of(features)
        error = float(risk.mean().sqrt()) * known.evidence.margin() if known.risk.known else float("inf")
        right = known.solution.right * shares.repeat_interleave(self.settings.width)
        return Correction(self._left(features, known.solution), right, risk, error, shares)

    def after(self, rows: Lesson, name: str) -> EdgeMap:
        """With one more dense request."""
        seen = self.seen + 1
        if self.learned is not None and rows.source.is_meta:  # sizes only, and these stay
            return replace(self, seen=seen, last=name)
        if self.learned is not None:
            return replace(self, seen=seen, last=name, learned=self._learn(self.learned, rows, seen))
        waiting = (*self.waiting, rows.thinned(max(WAITING // self.settings.warmup, 1)))
        if seen < self.settings.warmup:
            return replace(self, seen=seen, last=name, waiting=waiting)
        return replace(self, seen=seen, last=name, waiting=(), learned=self._begin(waiting, seen))

    def _left(self, features: Tensor, solution: Solution) -> Tensor:
        """Left factors ``[T, r]``, smaller for rows unlike all that have been seen."""
        left = features @ solution.left
        if not self.settings.caution:
            return left
        return left / (1 + self.settings.caution * leverage(features, solution.inverse))[:, None]

    def _begin(self, waiting: tuple[Lesson, ...], seen: int) -> Learned:
        s, some = self.settings, torch.cat([rows.source for rows in waiting])
        basis = Basis.of(some, s.taps, s.features, s.landmarks, s.floor)
        p, device = basis.size, some.device
        gram, cross = (
            torch.zeros(p, p, dtype=torch.float64, device=device),
            torch.zeros(p, s.groups * s.width, device=device),
        )
        level = torch.zeros(s.groups + 1, dtype=torch.float64, device=device)
        for rows in waiting:
            gram, cross, level = self._sums(basis, gram, cross, level, rows)
        scores = torch.zeros(len(PENALTIES), dtype=torch.float64, device=device)
        evidence, risk = Evidence.none(s.groups, device), Risk.none(p, device)
        return Learned(
            basis, gram, cross, level, scores, self._solved(gram, cross, level, scores), evidence, risk, seen
        )

    def _learn(self, known: Learned, rows: Lesson, seen: int) -> Learned:
        evidence, risk = self._judge(known, rows.thinned(JUDGED))
        due = seen >= known.solved * 1.1
        scores = self._vote(known, rows.thinned(VOTING)) if due and self.settings.penalty is None else known.scores
        gram, cross, level = self._sums(known.basis, known.gram, known.cross, known.level, rows)
        solution = self._solved(gram, cross, level, scores) if due else known.solution
        solved = seen if due else known.solved
        return Learned(known.basis, gram, cross, level, scores, solution, evidence, risk, solved)

    def _sums(
        self, basis: Basis, gram: Tensor, cross: Tensor, level: Tensor, rows: Lesson
    ) -> tuple[Tensor, Tensor, Tensor]:
        keep = self.settings.keep
        gram, cross = keep * gram, keep * cross
        for begin in range(0, len(rows), CHUNK):
            at = slice(begin, begin + CHUNK)
            features = basis.features(rows.source[at], rows.distance[at])
            gram += features.double().T @ features.double()
            cross += features.T @ rows.delta[at]
        count = torch.tensor([float(len(rows))], dtype=torch.float64, device=level.device)
        return gram, cross, keep * level + torch.cat([rows.energy, count])

    def _penalty(self, scores: Tensor) -> float:
        if self.settings.penalty is not None:
            return self.settings.penalty
        if scores.is_meta:
            return PENALTIES[FIRST]
        return PENALTIES[int(scores.argmin()) if bool(scores.any()) else FIRST]

    def _solved(self, gram: Tensor, cross: Tensor, level: Tensor, scores: Tensor) -> Solution:
        penalty, spectrum = self._penalty(scores), Spectrum.of(gram)
        weights = level[:-1].clamp_min(1e-30).rsqrt().float().repeat_interleave(self.settings.width)
        found = spectrum.solve(cross, penalty)
        left, right = spectrum.reduced(found, penalty, self.settings.rank, weights)
        return Solution(spectrum.inverse(penalty).float(), left, right)

    def _judge(self, known: Learned, rows: Lesson) -> tuple[Evidence, Risk]:
        """What the map as it is would have made of rows that it has not seen."""
        s = self.settings
        features = known.basis.features(rows.source, rows.distance)
        made = self._left(features, known.solution) @ known.solution.right
        exact = rows.energy.clamp_min(1e-30)
        moved, agreed, spent = (
            (a * b).view(len(rows), s.groups, s.width).sum((0, 2)).double() / exact
            for a, b in ((rows.delta, rows.delta), (rows.delta, made), (made, made))
        )
        shares = known.evidence.shares() if s.shrink else torch.ones_like(moved).float()
        rest = (rows.delta - made * shares.repeat_interleave(s.width)).view(len(rows), s.groups, s.width)
        per_row = known.level[:-1].clamp_min(1e-30) / known.level[-1]
        energy = (rest.square().sum(2) / per_row).mean(1).float()
        ratio = None
        if known.risk.known:
            expected = float(known.risk.of(features).mean().sqrt())
            ratio = float(energy.mean().sqrt()) / expected if expected else None
        penalty = self._penalty(known.scores)
        return known.evidence.after(moved, agreed, spent, ratio), known.risk.after(features, energy, penalty)

    def _vote(self, known: Learned, rows: Lesson) -> Tensor:
        """Scores after one more request: relative energy that each penalty leaves."""
        features, spectrum = known.basis.features(rows.source, rows.distance), Spectrum.of(known.gram)
        found = []
        for penalty in PENALTIES:
            rest = rows.delta - (features @ spectrum.inverse(penalty).float()) @ known.cross
            left = rest.view(len(rows), self.settings.groups, -1).square().sum((0, 2)).double()
            found.append((left / rows.energy.clamp_min(1e-30)).mean())
        return self.settings.keep * known.scores + torch.stack(found)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Everything it keeps, by name."""
        found = {f"waiting.{i}.{n}": getattr(r, n) for i, r in enumerate(self.waiting) for n in PARTS}
        if self.learned is None:
            return found
        known, solution = self.learned, self.learned.solution
        sums = {"gram": known.gram, "cross": known.cross, "level": known.level, "scores": known.scores}
        solved = {"inverse": solution.inverse, "left": solution.left, "right": solution.right}
        return {**known.basis.tensors(), **sums, **solved, **known.evidence.tensors(), **known.risk.tensors()}

    def facts(self) -> dict[str, int | str]:
        solved = self.learned.solved if self.learned is not None else 0
        return {"seen": self.seen, "last": self.last, "waiting": len(self.waiting), "solved": solved}

    @classmethod
    def load(cls, settings: Settings, facts: Mapping[str, int | str], blob: Mapping[str, Tensor]) -> EdgeMap:
        count = int(facts["waiting"])
        waiting = tuple(Lesson(*(blob[f"waiting.{i}.{name}"] for name in PARTS)) for i in range(count))
        learned = None
        if "gram" in blob:
            learned = Learned(
                Basis.load(blob),
                blob["gram"],
                blob["cross"],
                blob["level"],
                blob["scores"],
                Solution(blob["inverse"], blob["left"], blob["right"]),
                Evidence.load(blob),
                Risk.load(blob),
                int(facts["solved"]),
            )
        return cls(settings, int(facts["seen"]), str(facts["last"]), waiting, learned)
