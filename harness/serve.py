"""``python -m harness.serve method=kvcmas model=smollm2 [port=8000]``: vLLM's OpenAI server with a method inside.

Spans and agents come with each request, in ``kv_transfer_params`` (``harness/backends/vllm_call.py`` has the schema,
``examples/four_agents.py`` a client); a request without them is served as by plain vLLM. A request that may reuse needs
a ``cache_salt``, since what it leaves in vLLM's prefix cache is approximate. The answer's ``kv_transfer_params`` say
what was reused, ``/metrics`` has the totals (``vllm:kvcmas_*``).

    host=127.0.0.1, port=8000    where it listens
    backend.gaps=true            skip every covered row; a method that encodes spans alone needs it
    backend.options={...}        further arguments of vLLM's engine
    --config-dir DIR             further YAML files, as for a run
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from harness.command import attempt, composed, elsewhere, split
from harness.errors import UserError
from harness.explain import CommandLine

OWN = ("host", "port")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as ``arguments`` (those of the process by default) say; the server takes this process's place."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    with attempt() as tried:
        words, config_dir = elsewhere(words)
        own, rest = split(words, OWN)
        tried.asked = CommandLine(("backend=vllm", *rest), config_dir=config_dir)
        if not own.get("port", "8000").isdigit():
            raise UserError(f"port={own['port']}: expected a number")
        command, environment = server(tried.asked, own.get("host", "127.0.0.1"), int(own.get("port", "8000")))
        os.execve(sys.executable, command, {**os.environ, **environment})
    return tried.code


def server(asked: CommandLine, host: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the server.

    Raises:
        UserError: for what the backend refuses.
    """
    from harness.validate import build

    cfg, names = composed(asked)
    parts = build(cfg)
    seed = int(cfg.seed)
    if not hasattr(parts.backend, "settings"):
        raise UserError(f"backend={names.backend} is no server; leave backend alone")
    parts.backend.check(parts.model, parts.method, names.method, seed)
    method: Any = OmegaConf.to_container(cfg.method, resolve=True)
    settings = parts.backend.settings(parts.model, {k: v for k, v in method.items() if k != "name"}, seed)
    arguments: Mapping[str, Any] = settings.arguments(encodes=bool(parts.backend.gaps))
    options = {**arguments, "served_model_name": names.model, "host": host, "port": port}
    options["middleware"] = "harness.backends.vllm_gate.Gate"
    options["enable_prompt_tokens_details"] = True
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_flags(options)]
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)
    bound = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    return command, {"PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": bound}


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as vLLM's command line has them."""
    out = list[str]()
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            out.append(flag if value else "--no-" + flag[2:])
        else:
            out += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return out


if __name__ == "__main__":
    sys.exit(main())
