"""Closed forms against brute force."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.regression import Spectrum, leverage


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(("rows", "penalty"), [(50, 0.1), (50, 30.0), (7, 1.0)])
def test_solutions_satisfy_the_normal_equations(rows: int, penalty: float) -> None:
    f, y = draw(rows, 12).double(), draw(rows, 5, seed=1).double()
    found = Spectrum.of(f.T @ f).solve((f.T @ y).float(), penalty)
    assert relative(found, torch.linalg.solve(f.T @ f + penalty * torch.eye(12), f.T @ y)) < 1e-5


def test_leverage_is_the_leave_one_out_formula() -> None:
    """The residual that a row has when it is left out is its residual over 1 minus its leverage."""
    f, y, penalty = draw(20, 6), draw(20, 3, seed=1), 2.0
    whole = Spectrum.of(f.T @ f)
    residual = y - f @ whole.solve(f.T @ y, penalty)
    formula = residual / (1 - leverage(f, whole.inverse(penalty).float()))[:, None]
    for row in range(20):
        kept = torch.arange(20) != row
        others, targets = f[kept].double(), y[kept].double()
        left_out = torch.linalg.solve(others.T @ others + penalty * torch.eye(6), others.T @ targets)
        assert relative(formula[row], y[row] - f[row].double() @ left_out) < 1e-4


def test_the_reduced_map_is_the_best_of_its_rank_on_the_rows_seen() -> None:
    """Against the truncated singular value decomposition of the weighted fit."""
    f, y = draw(60, 10), draw(60, 8, seed=1)
    f[:, 3] = f[:, 2]  # a direction that the rows never show
    weights = torch.linspace(0.2, 3, 8)
    spectrum = Spectrum.of(f.T @ f)
    penalty = 1e-6
    fit = spectrum.solve(f.T @ y, penalty)
    values = torch.linalg.svdvals((f @ fit * weights).double())
    errors = []
    for rank in range(1, 11):
        left, right = spectrum.reduced(fit, penalty, rank, weights)
        assert left.shape == (10, rank)
        assert right.shape == (rank, 8)
        errors.append(float(((f @ (left @ right - fit)) * weights).double().square().sum()))
        best = float(values[rank:].square().sum())
        assert errors[-1] == pytest.approx(best, rel=1e-2, abs=1e-4)
    assert errors == sorted(errors, reverse=True)


def test_a_penalty_must_be_positive() -> None:
    with pytest.raises(ValueError, match="the penalty must be positive, got 0"):
        Spectrum.of(torch.eye(3)).solve(torch.ones(3, 1), 0)
