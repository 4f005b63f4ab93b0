"""How far a hop is from the dense run of the very same prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import Executed


@dataclass(frozen=True)
class Fidelity:
    """Differences to dense; see :class:`harness.records.HopRecord` for the meaning of each."""

    error_k: list[float]
    error_v: list[float]
    first_token_kl: float
    prefix_match: int
    answer_agrees: bool | None
    ttft_s: float


def compare(
    run: Executed,
    dense: Executed,
    ranges: Sequence[tuple[int, int]],
    choices: Sequence[int],
    answer_agrees: bool | None,
    ttft_s: float,
) -> Fidelity:
    """Compare a hop with its shadow over the reused prompt rows in ``ranges``.

    Args:
        choices: the hop's own greedy choices, which are its output unless that was forced.
    """
    pairs = [(run.kv(a, b), dense.kv(a, b)) for a, b in ranges if b > a]
    return Fidelity(
        error_k=relative_error([(mine.k, true.k) for mine, true in pairs]),
        error_v=relative_error([(mine.v, true.v) for mine, true in pairs]),
        first_token_kl=kl_divergence(dense.logits, run.logits),
        prefix_match=common_prefix(choices, dense.output_ids),
        answer_agrees=answer_agrees,
        ttft_s=ttft_s,
    )


def relative_error(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """Per layer ``||used - dense||_F / ||dense||_F`` over all ``(used, dense)`` pairs ``[L, H, T, D]``.

    Both sides are rotated at the same positions, so for keys this equals the error of the de-rotated keys.
    """
    if not pairs:
        return []
    layers = range(pairs[0][0].shape[0])
    difference = torch.stack([sum_squares(used.float() - true.float()) for used, true in pairs]).sum(0)
    size = torch.stack([sum_squares(true.float()) for _, true in pairs]).sum(0)
    ratio = (difference / size.clamp_min(torch.finfo(torch.float32).tiny)).sqrt()
    return [float(ratio[layer]) for layer in layers]


def sum_squares(x: Tensor) -> Tensor:
    """``[L, H, T, D] -> [L]``."""
    return x.square().sum(dim=(1, 2, 3))


def kl_divergence(true: Tensor, used: Tensor) -> float:
    """KL(softmax(true) || softmax(used)) in nats, computed in fp64 from logits ``[V]``."""
    log_p = true.double().log_softmax(0)
    log_q = used.double().log_softmax(0)
    return max(0.0, float((log_p.exp() * (log_p - log_q)).sum()))


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens before the first difference."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
