"""Models that think aloud between ``<think>`` and ``</think>``: what they say there is no answer."""

from __future__ import annotations

import re

_WHOLE = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_HEAD = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)  # its opening tag stood in the prompt
_TAIL = re.compile(r"<think(?:ing)?>.*\Z", re.DOTALL | re.IGNORECASE)  # cut off in the middle of a thought


def spoken(text: str) -> str:
    """``text`` without thoughts, finished or cut off."""
    if "think" not in text and "THINK" not in text:
        return text
    return _TAIL.sub("", _HEAD.sub("", _WHOLE.sub("\n", text)))
