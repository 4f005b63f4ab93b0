"""Effective rank: by its definition, and of the deltas and caches of a tiny model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from harness import analyse
from harness.analysis.rank import matrices_of
from harness.analysis.spectrum import Spectrum
from harness.report.ranks import read_ranks
from harness.report.special import rank_drawings, rank_grid
from methods.base import KV, Rope


def with_energies(*energies: float, rows: int = 12, columns: int = 9) -> torch.Tensor:
    """A matrix of these squared singular values, ``[1, rows, columns]``."""
    noise = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=noise, dtype=torch.float64))[0] for n in (rows, columns))
    diagonal = torch.zeros(rows, columns, dtype=torch.float64)
    for at, energy in enumerate(energies):
        diagonal[at, at] = math.sqrt(energy)
    return (left @ diagonal @ right)[None]


@pytest.mark.parametrize("wide", [False, True])
def test_ranks_are_those_of_known_energies(wide: bool) -> None:
    matrix = with_energies(80.0, 12.0, 5.0, 3.0)
    found = Spectrum.of(matrix.transpose(1, 2) if wide else matrix)
    assert [int(found.rank_at(s)) for s in (0.5, 0.80, 0.90, 0.95, 0.97, 0.99, 1.0)] == [1, 1, 2, 3, 3, 4, 4]
    shares = [0.80, 0.12, 0.05, 0.03]
    assert float(found.entropy_rank()) == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)))


def test_equal_components_all_count_and_nothing_counts_none() -> None:
    even = Spectrum.of(with_energies(*[2.0] * 6))
    assert float(even.entropy_rank()) == pytest.approx(6.0)
    assert int(even.rank_at(0.99)) == 6
    nothing = Spectrum.of(torch.zeros(1, 4, 5))
    assert (int(nothing.rank_at(0.9)), float(nothing.entropy_rank())) == (0, 0.0)


def test_rotation_keeps_the_energy_of_keys_and_raises_their_rank() -> None:
    layers, heads, rows, dim = 3, 2, 40, 8
    noise = torch.Generator().manual_seed(1)
    low = torch.randn(layers, heads, rows, 1, generator=noise) * torch.randn(layers, heads, 1, dim, generator=noise)
    base = torch.zeros(layers, heads, rows, dim)
    rope = Rope(1.0 / 100.0 ** (torch.arange(dim // 2) / (dim // 2)))
    found = {
        (kind, frame): matrices for kind, frame, matrices in matrices_of(KV(low, low), KV(base, base), rope, start=5)
    }
    assert found["delta_k", "derotated"].shape == (layers - 1, rows, heads * dim)
    assert found["base_v", "none"].shape[0] == layers
    plain, rotated = (Spectrum.of(found["delta_k", frame]) for frame in ("derotated", "rotated"))
    assert torch.allclose(plain.energy.sum(1), rotated.energy.sum(1))
    assert int(plain.rank_at(0.99).max()) <= heads
    assert int(rotated.rank_at(0.99).min()) > heads
    assert torch.equal(found["delta_v", "none"], found["delta_k", "derotated"])


def test_the_command_writes_what_the_report_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank-tiny-gsm8k.json"
    words = ["rank", "model=tiny", "model.context=8192", "task=gsm8k", "requests=2", "workflow=chain",
             "workflow.max_new_tokens=6", f"out={path}"]  # fmt: skip
    assert analyse.main(words) == 0
    assert "delta_k" in capsys.readouterr().out
    (found,), problems = read_ranks(tmp_path)
    assert not problems
    assert found.kinds == [("delta_k", "derotated"), ("delta_k", "rotated"), ("delta_v", "none"),
                           ("base_k", "derotated"), ("base_k", "rotated"), ("base_v", "none")]  # fmt: skip
    assert [row.layer for row in found.of("delta_k", "derotated")] == [1, 2, 3]
    assert [row.layer for row in found.of("base_v", "none")] == [0, 1, 2, 3]
    for row in found.found.layers:
        ranks = [row.energy_rank[e] for e in ("0.9", "0.95", "0.99")]
        assert 1 <= row.entropy_rank <= min(row.rows, 32)
        assert ranks == sorted(ranks)
    assert found.most(0.95) == max(r.energy_rank["0.95"] for k in ("delta_k", "delta_v") for r in found.found.layers
                                   if r.kind == k and r.frame != "rotated")  # fmt: skip
    assert len(rank_grid(found).rows) == 6
    assert len(rank_drawings(found)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rank", "requests=0"], "requests=0"),
        (["rank", "hops=1"], "hops=1"),
        (["rank", "spans=answers"], "spans=answers: expected one of all, question, output"),
        (["rank", "method=kvcmas"], "looks at caches, not at a method"),
        (["rang"], "did you mean rank"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyse.main(words) == 2
    assert said in capsys.readouterr().err


def test_help_names_the_subjects_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert analyse.main(["--help"]) == 0
    assert "rank" in capsys.readouterr().out
    for subject, option in (("rank", "spans=all"), ("ridge", "held_out=64")):
        assert analyse.main([subject, "--help"]) == 0
        assert option in capsys.readouterr().out
