from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels import dispatch
from kernels.dispatch import Implementation, chosen, describe, using

CPU = torch.device("cpu")


def test_auto_is_torch_on_a_cpu() -> None:
    assert chosen(CPU) is Implementation.TORCH
    with using("auto"):
        assert chosen(CPU) is Implementation.TORCH


def test_a_choice_ends_with_its_block_even_after_an_error() -> None:
    def inside() -> None:
        with using("triton"):
            assert chosen(CPU) is Implementation.TRITON
            with using("torch"):
                assert chosen(CPU) is Implementation.TORCH
            assert chosen(CPU) is Implementation.TRITON
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        inside()
    assert chosen(CPU) is Implementation.TORCH


@pytest.mark.parametrize(("units", "note"), [(True, ", bf16 units"), (False, "")])
def test_the_record_names_implementation_and_version(units: bool, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "bf16_units", lambda: units)
    assert describe(CPU) == f"torch {torch.__version__}{note}"
    with using("triton"):
        assert describe(CPU).startswith("triton 3.")


def test_only_bf16_on_a_processor_with_units_stays_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    full, half = torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)
    for units in (True, False):
        monkeypatch.setattr(dispatch, "bf16_units", lambda units=units: units)
        assert dispatch.narrow(half, half) is units
        assert not dispatch.narrow(half, full)
        assert not dispatch.narrow(half.half())
        assert not dispatch.narrow(half.to("meta"))


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, torch, triton"), using("cuda"):
        pass


def test_references_load_without_triton() -> None:
    """The torch path must work where Triton has no wheel, and must not pay for its import."""
    code = (
        "import sys; import kernels.attention, kernels.distance, kernels.factor, kernels.lowrank, kernels.sparse;"
        "print(any(name.split('.')[0] == 'triton' for name in sys.modules if sys.modules[name] is not None))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_the_package_itself_stays_empty() -> None:
    code = (
        "import kernels, sys; print(sorted(n for n in vars(kernels) if not n.startswith('__')), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[] False"
