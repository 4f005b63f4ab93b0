"""Rotary facts against the model they were read from: its rotary module, its projections, its cached keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, CohereConfig, LlamaConfig, PhiConfig, Qwen3Config

from harness.backends.hf_model import Tiny
from harness.backends.hf_rope import read_rope, shape_of
from harness.errors import UserError

EVERY = [(family, rope) for family in ("llama", "qwen2") for rope in ("plain", "llama3", "yarn")]
IDS = torch.randint(0, 256, (1, 24), generator=torch.Generator().manual_seed(5))
# One rounding is 0.35 % rms in bf16; the model and we each make a few.
DTYPES = [("float32", 2e-5), ("bfloat16", 1e-2), ("float16", 2e-3)]


def cached(model: Any, start: int) -> list[torch.Tensor]:
    """Keys per layer ``[H, T, D]`` that the model itself caches for the same tokens from ``start`` on."""
    with torch.no_grad():
        out = model(IDS, position_ids=torch.arange(start, start + IDS.shape[1])[None])
    return [layer.keys[0] for layer in out.past_key_values.layers]


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.mark.parametrize(("family", "rope"), EVERY)
def test_moved_keys_are_those_the_model_caches_there(family: Any, rope: Any) -> None:
    model = Tiny(family=family, rope=rope).load().model
    facts = read_rope(model)
    here, at = cached(model, 0), torch.arange(IDS.shape[1])
    for start in (1, 37, 2900):
        there = cached(model, start)
        for index, (a, b) in enumerate(zip(here, there, strict=True)):
            # Attention sees differences of positions only, so deeper layers agree up to fp32 angles at 2900.
            tolerance = 1e-5 if index == 0 and start < 100 else 2e-3
            assert error(facts.move(a, start), b) < tolerance, (index, start)
            assert error(facts.apply(facts.remove(a, at), at + start), b) < tolerance, (index, start)
            assert error(facts.move(b, -start), a) < tolerance, (index, start)


@pytest.mark.parametrize(("family", "rope"), EVERY)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_derotated_keys_are_the_projection_of_the_layer_input(
    family: Any, rope: Any, dtype: str, tolerance: float
) -> None:
    model = Tiny(family=family, rope=rope, dtype=dtype).load().model
    facts, layer = read_rope(model), model.model.layers[0]
    with torch.no_grad():
        projected = layer.self_attn.k_proj(layer.input_layernorm(model.model.embed_tokens(IDS)))[0]
    projected = projected.unflatten(-1, (-1, 16)).transpose(0, 1)  # [H, T, D]
    at = torch.arange(500, 500 + IDS.shape[1])
    assert error(facts.remove(cached(model, 500)[0], at), projected) < tolerance
    assert error(facts.apply(projected, at), cached(model, 500)[0]) < tolerance


@pytest.mark.parametrize("rope", ["plain", "llama3", "yarn"])
def test_removing_undoes_applying(rope: Any) -> None:
    facts = read_rope(Tiny(rope=rope).load().model)
    keys = torch.randn(2, 3, 9, 16, generator=torch.Generator().manual_seed(0))
    for start in (0, 1, 4000, -77):
        at = torch.arange(start, start + 9)
        assert error(facts.remove(facts.apply(keys, at), at), keys) < 1e-6


def test_the_three_kinds_of_rotary_differ() -> None:
    plain, llama3, yarn = (read_rope(Tiny(rope=rope).load().model) for rope in ("plain", "llama3", "yarn"))
    assert plain.scaling == llama3.scaling == 1.0
    assert yarn.scaling == pytest.approx(0.1 * torch.log(torch.tensor(4.0)).item() + 1)  # YaRN, arXiv 2309.00071, 3.4
    assert not torch.equal(plain.inv_freq, llama3.inv_freq)
    assert not torch.equal(plain.inv_freq, yarn.inv_freq)


def test_calling_a_yarn_rotary_at_the_offset_would_scale_twice() -> None:
    model = Tiny(rope="yarn").load().model
    facts, here, there = read_rope(model), cached(model, 0)[0], cached(model, 37)[0]
    assert error(facts.move(here, 37), there) < 1e-5
    assert error(facts.apply(here, torch.full((IDS.shape[1],), 37)), there) > 0.1


def test_frequencies_come_from_the_module_and_not_from_the_config() -> None:
    model = Tiny().load().model
    model.model.rotary_emb.inv_freq.mul_(0.5)
    assert torch.equal(read_rope(model).inv_freq, model.model.rotary_emb.inv_freq)
    model.config.rope_parameters["rope_theta"] = 5.0
    assert torch.equal(read_rope(model).inv_freq, model.model.rotary_emb.inv_freq)


def test_the_facts_do_not_alias_the_model() -> None:
    model = Tiny().load().model
    facts = read_rope(model)
    model.model.rotary_emb.inv_freq.zero_()
    assert facts.inv_freq.min() > 0


def test_a_partial_rotary_is_a_shorter_table() -> None:
    config = PhiConfig(
        vocab_size=256, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=32,
        partial_rotary_factor=0.5, bos_token_id=None, eos_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    facts = shape_of(model)
    assert (facts.head_dim, facts.rope.inv_freq.shape[0]) == (16, 4)
    for a, b in zip(cached(model, 0), cached(model, 37), strict=True):
        assert error(facts.rope.move(a, 37), b) < 1e-4
        assert torch.equal(facts.rope.move(a, 37)[..., 8:], a[..., 8:])


def test_a_family_with_normalised_keys_is_read_as_well() -> None:
    config = Qwen3Config(
        vocab_size=256, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        num_hidden_layers=2, intermediate_size=32, initializer_range=0.4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for a, b in zip(cached(model, 0), cached(model, 37), strict=True):
        assert error(shape_of(model).rope.move(a, 37), b) < 1e-4


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 1e4,
        },
    ],
    ids=["dynamic", "longrope"],
)
def test_a_loaded_model_whose_table_depends_on_the_length_is_refused(rope: dict[str, Any]) -> None:
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=32,
        rope_parameters=rope,
    )  # fmt: skip
    with pytest.raises(UserError, match=f"{rope['rope_type']}.* not one table for every prompt length"):
        read_rope(AutoModelForCausalLM.from_config(config))


def test_a_loaded_model_with_neighbouring_pairs_is_refused() -> None:
    config = CohereConfig(
        vocab_size=256, hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=32,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with pytest.raises(UserError, match="half-split pairs"):
        read_rope(AutoModelForCausalLM.from_config(config))


def test_one_layer_that_rotates_differently_is_found() -> None:
    model = Tiny().load().model
    attention = model.model.layers[2].self_attn
    forward = attention.forward

    def unrotated(position_embeddings: Any, **rest: Any) -> Any:
        cos, sin = position_embeddings
        return forward(position_embeddings=(torch.ones_like(cos), torch.zeros_like(sin)), **rest)

    attention.forward = unrotated
    with pytest.raises(UserError, match="keys of layer 2"):
        read_rope(model)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_shape_of_a_tiny_model(dtype: str, expected: torch.dtype) -> None:
    shape = shape_of(Tiny(layers=3, hidden=48, heads=6, kv_heads=3, head_dim=8, dtype=dtype, device="cpu").load().model)
    assert (shape.layers, shape.hidden, shape.kv_heads, shape.head_dim, shape.width) == (3, 48, 3, 8, 24)
    assert (shape.dtype, shape.device.type, shape.rope.inv_freq.dtype) == (expected, "cpu", torch.float32)
