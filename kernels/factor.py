"""Low-rank factors of a batch of tall matrices by a randomised range finder (KVCMAS, arXiv 2609.34060, section 4.2).

Subspace iteration with CholeskyQR2: matrix products and tiny Cholesky factorisations only, so a batch of layers stays
a batch of matrix products on every device, where a tall QR or SVD would loop over the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.operand import floating, shaped, typed

DEPENDENT = 0.3  # smallest diagonal of the second Cholesky factor that leaves a column of unit norm within 1e-5
GRAM = 8  # up to this many times the sketch width, one Gram matrix x^T x is cheaper than the passes over x it replaces
CHUNK = 1 << 26  # entries factorised at once, 256 MiB in fp32
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

    Narrow matrices iterate on ``x^T x``, wide ones on x itself; the subspace is the same.

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
    draw = torch.Generator(x.device).manual_seed(seed)
    start = torch.randn(width, sketch, generator=draw, device=x.device)
    out = Factors(
        torch.empty(batch, rows, kept, device=x.device),
        torch.empty(batch, kept, width, device=x.device),
        torch.empty(batch, kept, device=x.device),
        torch.empty(batch, device=x.device),
    )
    step = max(1, CHUNK // max(1, rows * width))
    for begin in range(0, batch, step):
        part = slice(begin, begin + step)
        wide = x[part].float()
        out.total[part] = torch.linalg.vector_norm(wide, dim=(1, 2)).square()
        if kept:
            _range(wide, start, power_iterations, ordered, Factors(*(field[part] for field in out)))
    return out


def factorise_joint(
    k: Tensor,
    v: Tensor,
    rank: int,
    *,
    seed: int,
    balance: float = 1.0,
    oversampling: int = 8,
    power_iterations: int = 2,
) -> tuple[Factors, Tensor, Tensor]:
    """One left factor for a key and a value matrix: factors of ``[k | balance * v]``, cut in two on the right.

    Before the rotation both are linear images of one change of the hidden state, so they share their left space; the
    joint form stores half of the dominant ``n * r``. Only de-rotated keys have this property.

    Args:
        k, v: ``[B, n, C]`` of one dtype.
        balance: scale of the values during the factorisation; larger means fewer errors in v.
        rank, seed, oversampling, power_iterations: as in :func:`factorise`.

    Returns:
        the factors of the joint matrix, and ``right_k``, ``right_v`` ``[B, r, C]`` with ``k ~ left @ right_k``.
    """
    floating("k", k, 3)
    floating("v", v, 3)
    shaped("v", v, k.shape)
    typed("v", v, k.dtype)
    if not balance > 0:
        raise ValueError(f"balance must be positive, got {balance}")
    joint = torch.cat([k, v * balance], 2)
    out = factorise(joint, rank, seed=seed, oversampling=oversampling, power_iterations=power_iterations)
    width = k.shape[2]
    return out, out.right[..., :width].contiguous(), out.right[..., width:] / balance


def _range(x: Tensor, start: Tensor, power_iterations: int, ordered: bool, out: Factors) -> None:
    """Factorise one fp32 chunk into the preallocated ``out``."""
    width, sketch = start.shape
    directions = start.expand(x.shape[0], width, sketch)
    if x.shape[1] > width and width <= GRAM * sketch:
        gram = x.mT @ x
        for _ in range(power_iterations):
            directions = _orthonormal(gram @ directions)
    else:
        for _ in range(power_iterations):
            directions = _orthonormal(x.mT @ _orthonormal(x @ directions))
    image = x @ directions
    first, second, bad = _cholesky_qr(image)
    right = second.mT @ (first.mT @ x)
    if bool(bad.any()):
        first[bad] = torch.linalg.qr(image[bad]).Q
        second[bad] = torch.eye(sketch, device=x.device)
        right[bad] = first[bad].mT @ x[bad]
    kept = out.right.shape[1]
    if not ordered:
        torch.matmul(first, second, out=out.left)
        out.right.copy_(right)
        out.energy.copy_(right.square().sum(-1))
        return
    # In fp32 the squares of small deltas underflow, on which some LAPACK builds give up.
    spread, basis = torch.linalg.eigh((wide := right.double()) @ wide.mT)
    energy, turn = spread.float(), basis.float()
    turn = turn.flip(-1)[..., :kept]
    torch.matmul(first, second @ turn, out=out.left)
    torch.matmul(turn.mT, right, out=out.right)
    out.energy.copy_(energy.flip(-1)[..., :kept].clamp_min(0))


def _orthonormal(y: Tensor) -> Tensor:
    """Orthonormal basis of the columns of ``y [B, m, w]``, m >= w."""
    first, second, bad = _cholesky_qr(y)
    out = first @ second
    if bool(bad.any()):
        out[bad] = torch.linalg.qr(y[bad]).Q
    return out


def _cholesky_qr(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """CholeskyQR twice: ``first @ second`` is the basis, ``second`` the small ``[B, w, w]`` of the second pass.

    The third result marks the members of the batch whose columns are (nearly) dependent, where two passes cannot give
    orthonormal columns: they need Householder QR. The others never notice.
    """
    first, inverse, failed = _cholesky_pass(y)
    out = y @ inverse
    # Now the Gram matrix is the identity up to what the ridge held back; a direction that the ridge still dominates
    # here would get no unit norm.
    smallest, second, again = _cholesky_pass(out)
    return out, second, failed | again | ~(first > 0) | ~(smallest > DEPENDENT)


def _cholesky_pass(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Least diagonal entry of the Cholesky factor of the ridged Gram matrix, the inverse of its transpose, failed."""
    gram = y.mT @ y
    mean = gram.diagonal(dim1=-2, dim2=-1).mean(-1)
    gram.diagonal(dim1=-2, dim2=-1).add_((RIDGE * mean)[:, None])
    lower, info = torch.linalg.cholesky_ex(gram)
    unit = torch.eye(y.shape[-1], device=y.device)
    inverse = torch.linalg.solve_triangular(lower.mT, unit, upper=True)
    return lower.diagonal(dim1=-2, dim2=-1).amin(-1), inverse, info != 0
