from __future__ import annotations

import dataclasses

import pytest

from kernels import aot


@pytest.mark.slow
def test_every_kernel_compiles_for_every_target_without_spills(capsys: pytest.CaptureFixture[str]) -> None:
    code = aot.main(["--sm", "80", "86", "90", "100"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert " 0 faulty" in printed
    for kernel in ("rope", "lowrank", "distance", "attention", "sparse"):
        assert sum(line.startswith(kernel) for line in printed.splitlines()) >= 8


def test_a_kernel_that_spills_or_outgrows_shared_memory_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(case for case in aot.cases() if case.name == "attention-d128")
    greedy = dataclasses.replace(case, constants={**case.constants, "BM": 128, "BN": 128}, warps=2, stages=4)
    monkeypatch.setattr(aot, "cases", lambda: iter([greedy]))
    assert aot.main(["--sm", "86"]) == 1
    printed = capsys.readouterr().out
    assert "of stack" in printed
    assert "shared memory" in printed
    assert "1 faulty" in printed


def test_missing_vector_loads_and_matrix_instructions_are_faults() -> None:
    good = aot.Compiled("x", 90, 64, 0, 0, 1024, 4, 8, matrix=True)
    assert good.faults == []
    assert dataclasses.replace(good, vector_loads=0).faults == ["has no vector loads"]
    assert dataclasses.replace(good, matrix_instructions=0).faults == ["has no matrix instructions"]
    assert dataclasses.replace(good, matrix_instructions=0, matrix=False).faults == []
    assert dataclasses.replace(good, spill_bytes=8).faults == ["spills 8 bytes"]


def test_unaligned_strides_lose_the_vector_loads() -> None:
    """The check can fail: without the promise of divisibility the compiler must load element by element."""
    case = next(case for case in aot.cases() if case.name == "rope-d64")
    loose = dataclasses.replace(case, arguments=tuple(kind.removesuffix("*") for kind in case.arguments))
    assert aot.compiled(loose, 90).faults == ["has no vector loads"]


def test_an_argument_list_that_does_not_match_is_refused() -> None:
    case = next(aot.cases())
    with pytest.raises(ValueError, match="rope-d64"):
        aot.compiled(dataclasses.replace(case, arguments=case.arguments[:-1]), 80)
