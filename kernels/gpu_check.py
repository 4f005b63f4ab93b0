"""Check and time every kernel on one GPU, in under five minutes.

``python -m kernels.gpu_check`` prints four tables: error of every kernel against its torch reference in bf16 at the
shapes of Llama-3.1-8B; times over tokens, anchors and rank against the ceiling measured in the same run; peak memory;
and one time to first token, dense against matching, correction and prefill of the private rows, through a decoder with
random weights. It exits with 1 if an error is larger than its tolerance. On a CPU it runs the same code with the
implementation that runs there (``--model tiny`` for a quick look).
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import attend
from kernels.ceiling import ceiling, peak_extra, seconds
from kernels.decoder import Decoder, reuse
from kernels.dispatch import Implementation, chosen, using
from kernels.distance import span_l2, token_l1, token_l2
from kernels.lowrank import correct
from kernels.operand import Matrix, Paged
from kernels.rope import rotate
from kernels.sparse import apply, sparsify
from kernels.workload import MODELS, Model, Point, Span, operands, works

TOLERANCE = 1e-2  # bf16 keeps 8 bits: one rounding of the result and one of a weighted factor


@dataclass(frozen=True)
class Check:
    """Relative RMS error of one kernel against its reference; NaN where only one side is finite."""

    name: str
    error: float

    @property
    def passed(self) -> bool:
        return self.error < TOLERANCE


def checks(model: Model, span: Span) -> Iterator[Check]:
    """Every kernel as it runs here against the torch reference, destinations poisoned with NaN."""
    for name, run in _calls(model, span):
        with using("torch"):
            expected = run()
        found = run()
        same = torch.equal(found.isnan(), expected.isnan())
        found, expected = found.float().nan_to_num(0.0), expected.float().nan_to_num(0.0)
        error = float((found - expected).norm() / expected.norm())
        yield Check(name, error if same else float("nan"))


def _calls(model: Model, span: Span) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    rows = span.keys.shape[2]
    device = span.keys.device
    cover = rows - 3
    positions = torch.arange(rows, device=device) + 100
    short: list[Matrix] = [(span.anchors_k[0][0][:, : rows // 2], span.anchors_k[0][1]), *span.anchors_k[1:]]
    weights = span.weights[:, :cover].contiguous()
    deltas: list[Matrix] = [(left[1:], None if right is None else right[1:]) for left, right in short]
    page = 16

    def dense() -> Tensor:
        out = torch.full_like(span.target, torch.nan)
        correct(
            out[0], out[1], span.keys, span.values, deltas, deltas, weights, weights, start=100, inv_freq=span.inv_freq
        )
        return out

    def paged() -> Tensor:
        count = rows // page + 2
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(device)
        caches = [
            Paged(span.keys.new_full((model.layers, count, page, model.heads, model.dim), torch.nan), order, first=5)
            for _ in range(2)
        ]
        correct(
            caches[0], caches[1], span.keys, span.values, deltas, deltas, weights, weights,
            start=100, inv_freq=span.inv_freq,
        )  # fmt: skip
        return torch.stack([cache.pages for cache in caches])

    def attention() -> Tensor:
        query = span.keys[0].repeat_interleave(4, 0)[:, ::7].contiguous()
        at = torch.arange(rows, device=device)[::7].flip(0).contiguous()
        return attend(query, span.keys[1], span.values[1], at, model.dim**-0.5)

    bitmap, packed = sparsify(span.values[1:], 0.25)

    def sparse() -> Tensor:
        out = torch.full_like(span.keys, torch.nan)
        apply(out, span.keys, bitmap, packed, start=100, inv_freq=span.inv_freq)
        return out

    yield "rotate", lambda: rotate(span.keys, positions, span.inv_freq)
    yield "correct", dense
    yield "correct, paged", paged
    yield "token_l1", lambda: token_l1(span.keys, span.anchors_k, cover)
    yield "token_l2", lambda: token_l2(span.keys, span.anchors_k, cover)
    yield "span_l2", lambda: span_l2(span.values, span.anchors_v)
    yield "attend", attention
    yield "sparse", sparse


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Median seconds: Triton's ``do_bench`` on a GPU, five calls elsewhere."""
    if chosen(device) is Implementation.TRITON and device.type == "cuda":
        from triton.testing import do_bench

        return float(do_bench(run, warmup=10, rep=50, return_mode="median")) / 1e3
    run()
    return statistics.median(seconds(run, device) for _ in range(5))


def first_token(model: Model, point: Point, fresh: int, device: torch.device) -> tuple[float, float]:
    """Seconds to the first token: dense prefill of all rows, and reuse of ``point.tokens`` rows plus ``fresh``."""
    span = operands(point, device)
    data = span.keys.dtype
    decoder = Decoder(model, 4, data, device)
    total = point.tokens + fresh
    cache = torch.zeros(2, model.layers, model.heads, total, model.dim, dtype=data, device=device)
    x = torch.randn(total, decoder.hidden, device=device).to(data)
    positions = torch.arange(total, device=device)

    def dense() -> None:
        decoder.run(x, positions, cache[0], cache[1]).argmax().item()

    def corrected() -> None:
        reuse(span.keys, span.values, span.anchors_k, span.anchors_v, cache[0], cache[1], decoder.inv_freq)
        decoder.run(x[point.tokens :], positions[point.tokens :], cache[0], cache[1]).argmax().item()

    times = []
    for run in (dense, corrected):
        run()
        times.append(min(seconds(run, device) for _ in range(3)))
    return times[0], times[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu_check", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=sorted(MODELS), default="llama31_8b")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--anchors", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--fresh", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    options = parser.parse_args(arguments)
    device, model = torch.device(options.device), MODELS[options.model]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, implementation {chosen(device)}")
    first = Point(
        options.model, options.tokens[0], max(options.anchors), options.ranks[0], options.dtype, options.dtype
    )
    results = list(checks(model, operands(first, device)))
    for check in results:
        print(f"{check.name:16} error {check.error:.2e} {'ok' if check.passed else 'WRONG'}")
    limit = ceiling(device, getattr(torch, options.dtype), 5)
    print(f"copy {limit.copy_bytes_per_s / 1e9:.0f} GB/s, product {limit.product_flops_per_s / 1e12:.2f} TFLOP/s")
    for tokens in options.tokens:
        for anchors in options.anchors:
            for rank in options.ranks:
                point = dataclasses.replace(first, tokens=tokens, anchors=anchors, rank=rank)
                span = operands(point, device)
                for work in works(point, span):
                    took = timed(work.run, device)
                    share = limit.least_s(work.bytes_moved, work.flops) / took
                    extra = peak_extra(work.run, device) / (2 * span.keys.nbytes)
                    print(
                        f"{work.name:10} T={tokens} A={anchors} r={rank}: {1e3 * took:.3f} ms,"
                        f" {work.bytes_moved / took / 1e9:.0f} GB/s, {work.flops / took / 1e12:.2f} TFLOP/s,"
                        f" {100 * share:.0f} % of the ceiling, peak {100 * extra:.0f} % of the span"
                    )
                del span
    dense, corrected = first_token(model, first, options.fresh, device)
    print(
        f"time to first token, {first.tokens} shared + {options.fresh} private rows: dense {1e3 * dense:.1f} ms,"
        f" corrected {1e3 * corrected:.1f} ms, {dense / corrected:.1f} x"
    )
    return 0 if all(check.passed for check in results) else 1


if __name__ == "__main__":
    sys.exit(main())
