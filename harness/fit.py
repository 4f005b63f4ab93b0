"""Whether a method will do on a model, before weights are read."""

from __future__ import annotations

import copy

import torch

from harness.backends.hf_facts import ModelFacts
from harness.errors import UserError
from methods.ability import Ability, required
from methods.base import Method, Rope, Shape

WORDS = {
    Ability.row_schedule: "to choose rows inside the forward",
    Ability.hidden_states: "to capture hidden states",
    Ability.attention: "to look at attention",
    Ability.oracle: "to look at the true rows of its own prompt",
}


def check_method(method: Method, label: str, model: str, facts: ModelFacts, seed: int) -> None:
    """Refuse a method whose options do not fit the model's sizes.

    Args:
        label, model: what method and model are called.

    Raises:
        UserError: in the method's own words.
    """
    rope = Rope(torch.ones(facts.head_dim // 2))  # stands in: only sizes are known without the weights
    sizes = (facts.layers, facts.kv_heads, facts.head_dim, facts.hidden)
    try:
        copy.deepcopy(method).bind(Shape(*sizes, torch.float32, torch.device("cpu"), rope), seed)
    except ValueError as error:
        raise UserError(f"method={label} does not fit model={model}: {error}") from error


def check_kernels(kernels: str, device: torch.device) -> None:
    """Refuse kernels that the device cannot run. Raises UserError naming the option."""
    if kernels == "triton" and device.type != "cuda":
        raise UserError(f"backend.kernels=triton needs a CUDA device, the model runs on {device}; use auto or torch")


def check_abilities(method: Method, label: str, backend: str, offers: frozenset[Ability]) -> None:
    """Refuse a method that asks an engine for more than it ``offers``. Raises UserError naming another backend."""
    if missing := required(method) - offers:
        raise UserError(
            f"method={label} needs {' and '.join(WORDS[a] for a in sorted(missing))}, which backend={backend} does not "
            "do; use backend=hf"
        )
