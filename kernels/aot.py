"""Compile every Triton kernel for GPUs that are not here, and read what the compiler made of it.

``python -m kernels.aot --sm 80 86 90 100`` prints, per kernel and target, registers, spills and stack, shared memory,
vector loads and matrix instructions. It exits with 1 if a kernel spills, exceeds the shared memory of its target, has
no vector load, or has a matrix product without matrix instructions. It does not run anything and needs no GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
VECTOR = re.compile(r"ld\.global[.\w:]*\.v[248]|cp\.async\.c[ag]\.shared\.global[^;]*0x(?:8|10)\b|cp\.async\.bulk")
MATRIX = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)")


@dataclass(frozen=True)
class Case:
    """One kernel with the argument types and block sizes that a 16-bit model of head dimension 128 or 64 uses.

    Attributes:
        arguments: type of every runtime argument in order; a trailing ``*`` marks a multiple of 16.
        constants: constexpr arguments by name.
        matrix: whether a matrix product belongs to it.
    """

    name: str
    kernel: Any
    arguments: tuple[str, ...]
    constants: dict[str, Any]
    matrix: bool
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class Compiled:
    """What one case became on one target; bytes are per thread (stack, spills) and per program (shared)."""

    name: str
    sm: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    vector_loads: int
    matrix_instructions: int
    matrix: bool

    @property
    def faults(self) -> list[str]:
        limit = SHARED_BYTES[self.sm]
        return [
            text
            for wrong, text in (
                (self.spill_bytes > 0, f"spills {self.spill_bytes} bytes"),
                (self.stack_bytes > 0, f"uses {self.stack_bytes} bytes of stack"),
                (self.shared_bytes > limit, f"needs {self.shared_bytes} of {limit} bytes shared memory"),
                (self.vector_loads == 0, "has no vector loads"),
                (self.matrix and self.matrix_instructions == 0, "has no matrix instructions"),
            )
            if wrong
        ]


def cases() -> Iterator[Case]:
    """Every kernel at head dimensions 64 and 128 in bf16, the paged forms included."""
    from kernels import attention_triton, distance_triton, lowrank_triton, rope_triton, sparse_triton
    from kernels.tile import FIELDS

    data, wide, index, number = "*bf16*", "*fp32*", "*i64*", "i32*"
    for dim in (64, 128):
        for page in (0, 16):
            suffix = f"d{dim}" + ("-paged" if page else "")
            out = (data, number, number, number, number, index, "i32")
            yield Case(
                f"rope-{suffix}",
                rope_triton.rope_kernel,
                (data, number, number, number, *out, wide, wide, "i32"),
                {"D": dim, "HALF": dim // 2, "PAGE": page, "BT": rope_triton.ROWS, "BH": dim // 2, "BD": 16},
                matrix=False,
            )
            for rotate in (True,) if page else (True, False):
                yield Case(
                    f"lowrank-{suffix}-{'k' if rotate else 'v'}",
                    lowrank_triton.lowrank_kernel,
                    (
                        *(data, number, number, number, *out, wide, wide),
                        *(
                            index,
                            index,
                            "i32",
                            index,
                            index,
                            "i32",
                            wide,
                            "i32",
                            "i32",
                            data,
                            "i32",
                            "i32",
                            "i32",
                            number,
                        ),
                    ),
                    {
                        "D": dim,
                        "HALF": dim // 2,
                        "ROTATE": rotate,
                        "PAGE": page,
                        "WIDE": False,
                        "FIELDS": FIELDS,
                        "ALIGN": 16,
                        "BT": lowrank_triton.ROWS,
                        "BH": dim // 2,
                        "BD": 16,
                        "BR": lowrank_triton.RANK,
                    },
                    matrix=True,
                )
        for name, squared, raw in (("l1", False, False), ("l2", True, False), ("raw", False, True)):
            yield Case(
                f"distance-d{dim}-{name}",
                distance_triton.distance_kernel,
                (data, number, number, number, index, index, data, wide, "i32", "i32", number),
                {
                    "H": 8,
                    "D": dim,
                    "SQUARED": squared,
                    "RAW": raw,
                    "GROUP": 8,
                    "WIDE": False,
                    "FIELDS": FIELDS,
                    "ALIGN": 16,
                    "BT": distance_triton.ROWS,
                    "BD": dim,
                    "BR": distance_triton.RANK,
                },
                matrix=not raw,
            )
        yield Case(
            f"attention-d{dim}",
            attention_triton.attention_kernel,
            (*(data, number, number) * 4, index, "fp32", "i32", "i32"),
            {
                "GROUPS": 4,
                "D": dim,
                "WIDE": False,
                "BM": attention_triton.ROWS,
                "BN": attention_triton.KEYS,
                "BD": dim,
            },
            matrix=True,
        )
        yield Case(
            f"sparse-d{dim}",
            sparse_triton.sparse_kernel,
            (
                *(data, number, number, number) * 2,
                *("*u8*", number, data, number, "*i32*", wide, wide, "i32", "i32", "i32"),
            ),
            {"D": dim, "HALF": dim // 2, "ROTATE": True, "BT": sparse_triton.ROWS, "BH": dim // 2, "BD": 16},
            matrix=False,
        )


def compiled(case: Case, sm: int) -> Compiled:
    """Compile one case for one target; the kernel's binder, which asks the driver, is never made."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = case.kernel.arg_names
    runtime = [name for name in names if name not in case.constants]
    if len(runtime) != len(case.arguments):
        raise ValueError(f"{case.name}: {len(case.arguments)} argument types for the arguments {runtime}")
    types = dict(zip(runtime, case.arguments, strict=True))
    source = ASTSource(
        case.kernel,
        {name: types[name].removesuffix("*") if name in types else "constexpr" for name in names},
        {(names.index(name),): value for name, value in case.constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name, kind in types.items() if kind.endswith("*")},
    )
    out = triton.compile(
        source,
        target=GPUTarget("cuda", sm, 32),
        options={"num_warps": case.warps, "num_stages": case.stages, "enable_fp_fusion": True},
    )
    registers, stack, spills = _resources(out.asm["cubin"])
    ptx = out.asm["ptx"]
    return Compiled(
        case.name,
        sm,
        registers,
        stack,
        spills,
        int(out.metadata.shared),
        len(VECTOR.findall(ptx)),
        len(MATRIX.findall(ptx)),
        case.matrix,
    )


def _resources(cubin: bytes) -> tuple[int, int, int]:
    """Registers, stack bytes and local (spill) bytes of the one kernel in a cubin."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump printed no resource usage: {text!r}")
    registers, stack, local = (int(group) for group in found.groups())
    return registers, stack, local


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.add_argument("--sm", type=int, nargs="+", default=[80, 86, 90, 100], choices=sorted(SHARED_BYTES))
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    options = parser.parse_args(arguments)
    jobs = [(case, sm) for case in cases() if options.only in case.name for sm in options.sm]
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda job: compiled(*job), jobs))
    print(f"{'kernel':24} {'sm':>4} {'regs':>5} {'stack':>6} {'spill':>6} {'shared':>7} {'vector':>7} {'matrix':>7}")
    for row in rows:
        print(
            f"{row.name:24} {row.sm:4} {row.registers:5} {row.stack_bytes:6} {row.spill_bytes:6}"
            f" {row.shared_bytes:7} {row.vector_loads:7} {row.matrix_instructions:7}"
            + "".join(f"  <- {fault}" for fault in row.faults)
        )
    faulty = [row for row in rows if row.faults]
    print(f"{len(rows)} compiled, {len(faulty)} faulty")
    return 1 if faulty or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
