"""The regression of one edge: what it recovers, what it refuses to claim, what it keeps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from methods.basis import PLACES, Basis
from methods.edge_map import Correction, EdgeMap
from methods.evidence import Evidence
from methods.lesson import Lesson, Settings

LAYERS, WIDTH, TAPS = 3, 6, 2
GROUPS, WIDE = 2 * (LAYERS - 1), TAPS * WIDTH
SETTINGS = Settings(
    features=12, landmarks=20, rank=64, warmup=2, memory=10**9, caution=0.0, penalty=None, shrink=True, groups=GROUPS,
    width=WIDTH, taps=TAPS, floor=1e-3,
)  # fmt: skip


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def lesson(seed: int, rows: int = 40, truth: Tensor | None = None, noise: float = 0.0) -> Lesson:
    """Source rows; their delta is ``truth`` of them and of a constant, plus noise; exact rows have energy 100 each."""
    source = draw(rows, WIDE, seed=seed)
    delta = noise * draw(rows, GROUPS * WIDTH, seed=seed + 10**6)
    if truth is not None:
        delta = delta + torch.cat([source, torch.ones(rows, 1)], 1) @ truth
    return Lesson(source, delta, torch.full((GROUPS,), 100.0 * rows).double(), torch.arange(rows))


def learned(settings: Settings, lessons: range, **kind: object) -> EdgeMap:
    edge = EdgeMap(settings)
    for seed in lessons:
        edge = edge.after(lesson(seed, **kind), f"t{seed}")  # type: ignore[arg-type]
    return edge


def remaining(edge: EdgeMap, test: Lesson) -> float:
    found = edge.correction(test.source, test.distance)
    assert found is not None
    return float((test.delta - found.left @ found.right).square().sum() / test.delta.square().sum())


TRUTH = draw(WIDE + 1, GROUPS * WIDTH, seed=77)


def test_an_exact_linear_relation_is_recovered() -> None:
    edge = learned(replace(SETTINGS, penalty=1e-3), range(12), truth=TRUTH)
    assert remaining(edge, lesson(99, truth=TRUTH)) < 1e-5


def test_the_penalty_is_chosen_from_the_data() -> None:
    """Few noisy rows ask for more of it than many exact ones; neither is told."""
    exact, noisy = (
        learned(SETTINGS, range(12), truth=TRUTH),
        learned(SETTINGS, range(12), truth=0.02 * TRUTH, noise=1.0),
    )
    assert exact.learned is not None
    assert noisy.learned is not None
    assert int(exact.learned.scores.argmin()) == 0
    assert int(noisy.learned.scores.argmin()) == 2


@pytest.mark.parametrize("shrink", [True, False])
def test_noise_is_never_made_worse_when_corrections_have_to_prove_themselves(shrink: bool) -> None:
    """Deltas without any relation to their sources: rotation alone is best, and shrunken corrections cost nothing."""
    worse = []
    for trial in range(5):
        edge = learned(replace(SETTINGS, shrink=shrink, penalty=1.0), range(100 * trial, 100 * trial + 8), noise=1.0)
        worse.append(remaining(edge, lesson(7000 + trial, rows=200, noise=1.0)))
    mean = sum(worse) / len(worse)
    assert mean < 1.005 if shrink else mean > 1.05


def test_nothing_is_applied_before_it_was_tested() -> None:
    """Two requests choose the basis; one that agrees is no evidence yet; the second is."""
    test = lesson(99, truth=TRUTH)
    assert learned(SETTINGS, range(1), truth=TRUTH).correction(test.source, test.distance) is None
    for count, kept in ((2, 1.0), (3, 1.0)):
        assert remaining(learned(SETTINGS, range(count), truth=TRUTH), test) == kept
    assert remaining(learned(SETTINGS, range(4), truth=TRUTH), test) < 0.5


def test_the_expected_error_is_the_true_one_and_wide_at_first() -> None:
    """Without evidence it is infinite; then it falls towards the truth, which it overstates rather."""
    tests = [lesson(seed, truth=TRUTH, noise=1.0) for seed in range(500, 510)]
    expected, true = [], []
    for count in (2, 3, 4, 6, 10, 40):
        edge = learned(SETTINGS, range(count), truth=TRUTH, noise=1.0)
        found = [edge.correction(test.source, test.distance) for test in tests]
        expected.append(sum(f.error for f in found if f is not None) / len(tests))
        true.append(sum(left_over(f, test) for f, test in zip(found, tests, strict=True)) / len(tests))
    assert expected[0] == expected[1] == math.inf
    assert expected[2] > expected[3] > expected[4] > expected[5]
    assert all(e > t for e, t in zip(expected[:5], true, strict=False))
    assert true[5] < expected[5] < 1.35 * true[5]


def left_over(found: Correction | None, test: Lesson) -> float:
    """The true relative error, as the gate defines it."""
    assert found is not None
    rest = (test.delta - found.left @ found.right).view(len(test), GROUPS, WIDTH).square().sum((0, 2))
    return float((rest.double() / test.energy).mean().sqrt())


def test_rows_unlike_all_that_were_seen_are_corrected_less() -> None:
    edge = learned(replace(SETTINGS, caution=4.0), range(12), truth=TRUTH)
    plain = EdgeMap(SETTINGS, learned=edge.learned, seen=edge.seen)
    test = lesson(99)
    for scale, least in ((1.0, 0.5), (30.0, 0.0)):
        with_caution, without = (e.correction(scale * test.source, test.distance) for e in (edge, plain))
        assert with_caution is not None
        assert without is not None
        ratio = float((with_caution.left @ with_caution.right).norm() / (without.left @ without.right).norm())
        assert least < ratio < 1.0
        if scale == 30.0:
            assert ratio < 0.5


def test_old_lessons_fade() -> None:
    """The reader changes its ways: a short memory follows, a long one averages."""
    test = lesson(999, truth=-TRUTH)
    left = {}
    for memory in (4, 10**9):
        edge = learned(replace(SETTINGS, memory=memory, penalty=1e-2, shrink=False), range(20), truth=TRUTH)
        for seed in range(50, 62):
            edge = edge.after(lesson(seed, truth=-TRUTH), f"t{seed}")
        left[memory] = remaining(edge, test)
    assert left[4] < 0.05 < 0.5 < left[10**9]


def test_bytes_follow_the_formula_and_not_the_length() -> None:
    short, long = (learned(SETTINGS, range(5), rows=rows, truth=TRUTH) for rows in (30, 700))
    basis = short.learned.basis if short.learned is not None else None
    assert basis is not None
    directions, marks = basis.directions.shape[1], len(basis.landmarks)
    p, outputs = PLACES + 3 * directions + marks, GROUPS * WIDTH
    assert basis.size == p == basis.features(torch.zeros(2, WIDE), torch.arange(2)).shape[1]
    r = min(SETTINGS.rank, p)
    rest = 20 * p + 8 * (GROUPS + 1) + 32 * GROUPS + 64
    large = 4 * (p + r) * outputs + 20 * p * p + 4 * (p * r + WIDE * directions + WIDE + marks * directions + marks**2)
    assert short.nbytes == long.nbytes == large + rest
    waiting = learned(replace(SETTINGS, warmup=3), range(2), rows=4000)
    assert waiting.nbytes <= 512 * (4 * (WIDE + outputs) + 8) + 2 * 8 * GROUPS


def test_a_state_is_never_changed_behind_its_back() -> None:
    edge = learned(SETTINGS, range(5), truth=TRUTH)
    before = {name: tensor.clone() for name, tensor in edge.tensors().items()}
    edge.after(lesson(50, truth=TRUTH), "t50").after(lesson(51, truth=TRUTH), "t51")
    assert all(torch.equal(before[name], tensor) for name, tensor in edge.tensors().items())


def test_a_basis_spans_few_rows_and_repeated_ones() -> None:
    """Fewer rows than directions, and landmarks that coincide: finite, and as many as there can be."""
    rows = draw(3, WIDE, seed=1)[[0, 1, 2, 2, 2]]
    basis = Basis.of(rows, TAPS, 12, 20)
    assert basis.directions.shape == (WIDE, 5)
    assert torch.isfinite(basis.features(draw(4, WIDE, seed=2), torch.arange(4))).all()
    assert torch.isfinite(Basis.of(torch.ones(1, WIDE), TAPS, 12, 20).features(rows, torch.arange(5))).all()


def test_one_request_is_never_clear_evidence() -> None:
    one = Evidence.none(2, torch.device("cpu")).after(torch.ones(2), torch.ones(2), torch.ones(2), 1.0)
    assert not one.shares().any()
    assert one.after(torch.ones(2), torch.ones(2), torch.ones(2), 1.0).shares().tolist() == [1.0, 1.0]
    against = one.after(torch.ones(2), torch.tensor([1.0, -1.0]), torch.ones(2), 1.0)
    assert against.shares()[1] == 0
