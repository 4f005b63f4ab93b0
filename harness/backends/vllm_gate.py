"""What stands before vLLM's OpenAI server: requests that could not be served as they ask are told so at once."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from harness.backends.vllm_call import KEY, parse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PATHS = ("/v1/completions", "/v1/chat/completions")


def refusal(body: Any) -> str | None:
    """Why a request with this JSON body is refused; None if it is not, or is none of ours."""
    if not isinstance(body, dict):
        return None
    params = body.get("kv_transfer_params")
    if not isinstance(params, dict) or params.get(KEY) is None:
        return None
    try:
        parse(params)
    except ValueError as error:
        return f"kv_transfer_params.{KEY}: {error}"
    if not body.get("cache_salt"):
        return (
            "cache_salt is missing: reused rows are approximate and must not be found by other requests; "
            "give the agent's name, or another string that only its own requests share"
        )
    if body.get("prompt_logprobs") is not None or body.get("echo"):
        return (
            "prompt_logprobs and echo need every row computed, so that nothing could be reused; leave one of them out"
        )
    if int(body.get("n") or 1) > 1 or (isinstance(body.get("prompt"), list) and _batched(body["prompt"])):
        return "a hop is one prompt with one answer; send one request each"
    return None


class Gate:
    """ASGI middleware: answers 400 to what :func:`refusal` refuses, and hands everything else on."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope.get("method") != "POST" or scope.get("path") not in PATHS:
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the client has gone
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            why = refusal(json.loads(body))
        except json.JSONDecodeError:
            why = None  # the server says it in its own words
        if why is not None:
            await _refuse(send, why)
            return
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)


async def _refuse(send: Send, why: str) -> None:
    error = {"message": why, "type": "BadRequestError", "param": "kv_transfer_params", "code": 400}
    data = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": data})


def _batched(prompt: list[Any]) -> bool:
    return bool(prompt) and not isinstance(prompt[0], int)
