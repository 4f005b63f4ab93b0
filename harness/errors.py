"""Errors that the person at the command line can fix, and one line about any other."""

from __future__ import annotations


class UserError(Exception):
    """One clear sentence: what was expected, what was found, which option to change. Ends the run with exit code 2."""


def in_one_line(error: BaseException) -> str:
    """Type and first line of an error, for the record of what failed while the rest goes on."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"
