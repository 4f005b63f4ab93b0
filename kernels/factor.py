"""Low-rank factors of a batch of tall matrices by a randomised range finder (KVCMAS, arXiv 2609.34060, section 4.2).

Subspace iteration with CholeskyQR2: matrix products and tiny Cholesky factorisations only, so a batch of layers stays
a batch of matrix products on every device, where a tall QR or SVD would loop over the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.operand import floating

DEPENDENT = 0.03  # smallest diagonal of the second Cholesky factor that still leaves a unit column
RIDGE = 1e-6  # relative to the mean diagonal of the Gram matrix, far below what the second pass repairs


class Factors(NamedTuple):
    """``x ~ left @ right``.

    Attributes:
        left: fp32 ``[B, n, r]`` with orthonormal columns.
        right: fp32 ``[B, r, C]``, carries the scale; rows ordered by energy if asked for.
        energy: fp32 ``[B, r]``, squared norm that each component captures.
        total: fp32 ``[B]``, squared Frobenius norm of x; ``total - energy.sum(1)`` is the squared error.
    """

    left: Tensor
    right: Tensor
    energy: Tensor
    total: Tensor


def factorise(
    x: Tensor, rank: int, *, seed: int, oversampling: int = 8, power_iterations: int = 2, ordered: bool = True
) -> Factors:
    """Approximate every matrix of a batch by its leading ``rank`` components.

    The start matrix comes from an own generator seeded by ``seed`` and is shared by the batch, so the factors of one
    matrix depend neither on the others nor on the order of calls. With ``ordered`` the components are sorted by energy
    and cutting columns of ``left`` and rows of ``right`` gives the factors of any lower rank. ``ordered=False,
    oversampling=0`` is the paper's plain range finder, whose factors cannot be cut.

    Args:
        x: ``[B, n, C]`` fp32, bf16 or fp16; arithmetic is fp32.
        rank: components wanted, >= 1; r = min(rank, n, C) are returned.
        seed: of the start matrix.
        oversampling: extra sketch columns, cut away at the end; needs ``ordered`` if not 0.
        power_iterations: passes of x^T x over the sketch.
        ordered: rotate the basis so that components are sorted by energy.

    Raises:
        ValueError: naming the argument that does not fit.
    """
    floating("x", x, 3)
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    if oversampling < 0 or power_iterations < 0:
        raise ValueError(
            f"oversampling and power_iterations must not be negative, got {oversampling}, {power_iterations}"
        )
    if oversampling and not ordered:
        raise ValueError("oversampling needs ordered=True: unordered factors cannot be cut back to the rank")
    batch, rows, width = x.shape
    kept = min(rank, rows, width)
    sketch = min(rank + oversampling, rows, width)
    x = x.float()
    total = torch.linalg.vector_norm(x, dim=(1, 2)).square()
    if not kept or not batch:
        return Factors(x.new_zeros(batch, rows, 0), x.new_zeros(batch, 0, width), x.new_zeros(batch, 0), total)
    draw = torch.Generator(x.device).manual_seed(seed)
    start = torch.randn(width, sketch, generator=draw, device=x.device)
    basis = _orthonormal(x @ start)
    for _ in range(power_iterations):
        basis = _orthonormal(x @ _orthonormal(x.mT @ basis))
    right = basis.mT @ x
    if ordered:
        energy, turn = torch.linalg.eigh(right @ right.mT)
        turn = turn.flip(-1)[..., :kept]
        basis, right = basis @ turn, turn.mT @ right
        energy = energy.flip(-1)[..., :kept].clamp_min(0)
    else:
        energy = right.square().sum(-1)
    return Factors(basis, right, energy, total)


def _orthonormal(y: Tensor) -> Tensor:
    """Orthonormal basis of the columns of ``y [B, m, w]``, m >= w.

    CholeskyQR twice. Members of the batch whose columns are (nearly) dependent, where two passes cannot give
    orthonormal columns, take Householder QR instead; the others never notice.
    """
    bad = torch.zeros(y.shape[0], dtype=torch.bool, device=y.device)
    out = y
    for _ in range(2):
        gram = out.mT @ out
        mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
        gram.diagonal(dim1=-2, dim2=-1).add_((RIDGE * mean)[:, None])
        lower, failed = torch.linalg.cholesky_ex(gram)
        bad = bad | (failed != 0) | ~(lower.diagonal(dim1=-2, dim2=-1).amin(-1) > 0)
        out = torch.linalg.solve_triangular(lower.mT, out, upper=True, left=False)
    # After the first pass the Gram matrix is the identity up to what the ridge held back; directions that the ridge
    # still dominates in the second pass have no unit norm.
    bad = bad | (lower.diagonal(dim1=-2, dim2=-1).amin(-1) < DEPENDENT)
    if bool(bad.any()):
        out = torch.where(bad[:, None, None], 0.0, out)
        out[bad] = torch.linalg.qr(y[bad]).Q
    return out
