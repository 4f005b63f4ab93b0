"""The choices of the configuration group ``model`` for the transformers engine.

    model=smollm2    SmolLM2     trained weights that come with a package, offline
    model=tiny       Tiny        random weights, a second, for tests
    model=tiny_vlm   TinyVLM     SmolLM2 behind a small random vision tower
    others           Hub         a repository of the hub, or a folder on disk

A choice is a :class:`ModelSource`: ``facts()``, then ``tokenizer()``, then ``load()``.
"""

from __future__ import annotations

from harness.backends.hf_facts import LoadedModel, ModelFacts, ModelSource
from harness.backends.hf_hub import Hub
from harness.backends.hf_smollm2 import SmolLM2
from harness.backends.hf_tiny import Tiny
from harness.backends.hf_tiny_vlm import TinyVLM

__all__ = ["Hub", "LoadedModel", "ModelFacts", "ModelSource", "SmolLM2", "Tiny", "TinyVLM"]
