from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels import gpu_check
from kernels.decoder import Decoder
from kernels.workload import MODELS, Point, operands

TINY = ["--device", "cpu", "--model", "tiny", "--tokens", "32", "--anchors", "2", "--ranks", "4", "--fresh", "8"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prints_its_tables_on_a_cpu(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([*TINY, "--dtype", dtype]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" ok\n") == 8
    for text in ("implementation torch", "GB/s", "% of the ceiling", "peak", "time to first token"):
        assert text in printed


@pytest.mark.parametrize("wrong", [1.1, float("nan")])
def test_a_wrong_kernel_fails(
    wrong: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def calls(*_: object) -> Iterator[tuple[str, object]]:
        results = iter([torch.ones(4), torch.tensor([1.0, 1.0, 1.0, wrong])])
        yield "broken", lambda: next(results)

    monkeypatch.setattr(gpu_check, "_calls", calls)
    assert gpu_check.main(TINY) == 1
    assert "WRONG" in capsys.readouterr().out


def test_decoder_rows_run_alone_equal_rows_run_together() -> None:
    """What the time to first token rests on: private rows over a filled cache give the dense result."""
    model = MODELS["tiny"]
    decoder = Decoder(model, 4, torch.float32, torch.device("cpu"))
    x = torch.randn(20, decoder.hidden, generator=torch.Generator().manual_seed(0))
    at = torch.arange(20)

    def caches() -> Tensor:
        return torch.zeros(2, model.layers, model.heads, 20, model.dim)

    whole, parts = caches(), caches()
    together = decoder.run(x, at, whole[0], whole[1])
    decoder.run(x[:13], at[:13], parts[0], parts[1])
    torch.testing.assert_close(decoder.run(x[13:], at[13:], parts[0], parts[1]), together)
    torch.testing.assert_close(parts, whole)


def test_workloads_repeat() -> None:
    point = Point("tiny", 16, 2, 4, "bfloat16", "bfloat16")
    first, second = (operands(point, torch.device("cpu")) for _ in range(2))
    assert torch.equal(first.keys, second.keys)
    assert torch.equal(first.anchors_v[1][0], second.anchors_v[1][0])
    assert not torch.equal(first.keys, first.values)
