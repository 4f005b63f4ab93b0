"""Errors that the person at the command line can fix."""

from __future__ import annotations


class UserError(Exception):
    """One clear sentence: what was expected, what was found, which option to change. Ends the run with exit code 2."""
