"""Random models and the options that every model source shares. Folders and the hub: test_model_folders.py."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.backends import hf_facts
from harness.backends.hf_model import Tiny
from harness.errors import UserError

EVERY = [(family, rope) for family in ("llama", "qwen2") for rope in ("plain", "llama3", "yarn")]


def test_composing_a_configuration_imports_nothing_heavy() -> None:
    code = (
        "import sys; from harness.backends.hf_model import Hub, SmolLM2, Tiny; Tiny(); SmolLM2(); Hub(name='x')"
        "; assert not {'torch', 'transformers', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("family", "rope"), EVERY)
def test_equal_fields_give_equal_weights_and_leave_the_global_random_state_alone(family: Any, rope: Any) -> None:
    before = torch.get_rng_state()
    first = Tiny(family=family, rope=rope).load()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1234)
    second, other = Tiny(family=family, rope=rope).load(), Tiny(family=family, rope=rope, seed=1).load()
    for (name, a), b, c in zip(
        first.model.named_parameters(), second.model.parameters(), other.model.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert not torch.equal(a, c), name
    assert first.facts == second.facts
    assert first.facts.revision != other.facts.revision


@pytest.mark.parametrize(("family", "rope"), EVERY)
def test_a_tiny_model_depends_on_its_context_as_a_trained_one_does(family: Any, rope: Any) -> None:
    loaded = Tiny(family=family, rope=rope).load()
    ids = torch.randint(0, 256, (1, 64), generator=torch.Generator().manual_seed(3))
    changed = ids.clone()
    changed[0, :8] = (ids[0, :8] + 1) % 256
    with torch.no_grad():
        out, other = loaded.model(ids), loaded.model(changed)
    assert torch.isfinite(out.logits).all()
    assert out.logits.argmax(-1).unique().numel() > 16
    for index, (one, two) in enumerate(zip(out.past_key_values.layers, other.past_key_values.layers, strict=True)):
        for a, b in ((one.keys, two.keys), (one.values, two.values)):
            moved = ((a - b)[:, :, 8:].norm() / a[:, :, 8:].norm()).item()
            assert moved == 0 if index == 0 else moved > 0.02, (index, moved)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        last = torch.stack(loaded.model(ids, output_attentions=True).attentions)[..., -1, :]  # [L, 1, heads, N]
    entropy = -(last * last.clamp_min(1e-12).log()).sum(-1)
    assert entropy.exp().mean() < 0.7 * ids.shape[1]


def test_tiny_models_have_grouped_heads_and_qwen2_biases() -> None:
    loaded = Tiny(family="qwen2", heads=6, kv_heads=2, head_dim=32, hidden=48).load()
    attention = loaded.model.model.layers[-1].self_attn
    assert attention.q_proj.weight.shape == (6 * 32, 48)
    assert attention.k_proj.weight.shape == attention.v_proj.weight.shape == (2 * 32, 48)
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        assert projection.bias.abs().min() > 0


def test_casting_a_tiny_model_leaves_its_rotary_table_alone() -> None:
    full, half = Tiny().load().model, Tiny(dtype="bf16").load().model
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert torch.equal(full.model.rotary_emb.inv_freq, half.model.rotary_emb.inv_freq)
    for a, b in zip(full.parameters(), half.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_the_byte_tokenizer_gives_the_bytes_and_back(text: str) -> None:
    tokenizer = Tiny().tokenizer()
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if "<|" not in text:
        assert ids == list(text.encode())
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_the_chat_template_marks_turns_with_the_token_that_stops_them() -> None:
    loaded = Tiny().load()
    ids = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    start, end = loaded.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert loaded.stop_ids == (end,)
    assert ids == [start, *b"user\nhi", end, *b"\n", start, *b"assistant\n"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"family": "gpt"}, "model.family=gpt"),
        ({"rope": "dynamic"}, "model.rope=dynamic"),
        ({"heads": 4, "kv_heads": 3}, "model.kv_heads=3"),
        ({"layers": 0}, "model.layers=0"),
        ({"head_dim": 15}, "model.head_dim=15"),
        ({"context": 8, "rope": "yarn"}, "model.context=8"),
        ({"dtype": "float8"}, "model.dtype=float8"),
        ({"device": "abacus"}, "model.device=abacus"),
        ({"device": "mps"}, "model.device=mps"),
        ({"device": "cuda:99"}, "model.device=cuda:99"),
    ],
)
def test_a_wrong_option_is_named_before_anything_is_built(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Tiny(**options).facts()


@pytest.mark.parametrize("instruction", [None, "avx512_bf16", "amx_bf16"])
def test_automatic_dtype_is_bf16_on_a_cpu_only_with_the_instructions(
    monkeypatch: pytest.MonkeyPatch, instruction: str | None
) -> None:
    found = {"avx2": True, "avx512_bf16": False, "amx_bf16": False} | ({instruction: True} if instruction else {})
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    expected = torch.bfloat16 if instruction else torch.float32
    assert hf_facts.choose_dtype("auto", torch.device("cpu")) == expected
    assert hf_facts.choose_dtype("fp16", torch.device("cpu")) == torch.float16


@pytest.mark.parametrize(("supported", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_automatic_choices_on_cuda(monkeypatch: pytest.MonkeyPatch, supported: bool, expected: torch.dtype) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: supported)
    device = hf_facts.choose_device("auto")
    assert device.type == "cuda"
    assert hf_facts.choose_dtype("auto", device) == expected
