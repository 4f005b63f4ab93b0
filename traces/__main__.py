"""``python -m traces agents|paper|mooncake ... --out FILE``: write a trace, or say what one holds (``show FILE``)."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import MISSING, fields
from pathlib import Path

from traces import mooncake
from traces.agents import Agents
from traces.paper import Paper
from traces.schema import Trace, TraceError


def main(arguments: list[str] | None = None) -> int:
    """Run what ``arguments`` ask for; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.kind == "show":
            print(describe(Trace.read(options.file)))
            return 0
        _check_out(options)
        trace = _made(options)
        trace.write(options.out)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # of --out: whatever is wrong with a file that is read is a TraceError
        what = f"cannot be written ({error.strerror}); name a file in a folder you may write to"
        print(f"error: --out {options.out}: {what}", file=sys.stderr)
        return 2
    print(f"{describe(trace)}\nfile: {options.out}")
    return 0


def describe(trace: Trace) -> str:
    """A few lines for people: counts, lengths, span of time."""
    requests = trace.requests
    prompts = [r.prompt_tokens for r in requests]
    shared = 100 * sum(r.shared_tokens for r in requests) / sum(prompts)
    trajectories = len({r.trajectory for r in requests})
    return (
        f"{len(requests)} requests in {trajectories} trajectories over {requests[-1].arrival_s:.1f} s\n"
        f"prompts of {min(prompts):,} to {max(prompts):,} tokens, {sum(prompts):,} in all, {shared:.1f} % shared\n"
        f"{sum(r.output_tokens for r in requests):,} tokens to generate"
    )


def _check_out(options: argparse.Namespace) -> None:
    out: Path = options.out
    if out.exists() and not out.is_file():
        raise TraceError(f"--out {out}: this is a folder or a device; name a file")
    if options.kind == "mooncake" and out.exists() and os.path.exists(options.file) and out.samefile(options.file):
        raise TraceError(f"--out {out}: this is the file to convert, which would be lost; name another file")


def _made(options: argparse.Namespace) -> Trace:
    if options.kind == "mooncake":
        return mooncake.read(options.file, options.limit)
    kind: type[Agents | Paper] = Agents if options.kind == "agents" else Paper
    return kind(**{f.name: getattr(options, f.name) for f in fields(kind)}).trace()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m traces", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name, kind in (("agents", Agents), ("paper", Paper)):
        sub = kinds.add_parser(name, help=(kind.__doc__ or "").splitlines()[0])
        for f in fields(kind):
            assert f.default is not MISSING
            flag, given = f"--{f.name.replace('_', '-')}", type(f.default)
            if given is bool:
                sub.add_argument(flag, action=argparse.BooleanOptionalAction, default=f.default)
            else:
                sub.add_argument(flag, type=given, default=f.default, help=f"default {f.default}")
        sub.add_argument("--out", type=Path, required=True)
    sub = kinds.add_parser("mooncake", help="Convert a file of Mooncake's format.")
    sub.add_argument("file", type=Path)
    sub.add_argument("--limit", type=int, default=None)
    sub.add_argument("--out", type=Path, required=True)
    sub = kinds.add_parser("show", help="Say what a trace holds.")
    sub.add_argument("file", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
