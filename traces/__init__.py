"""Serving traces: which agent calls what, when, over which shared text. Schema, generator, readers; numpy, msgspec.

A trace holds lengths and names of text, not text: the ids behind a name follow from the trace's seed, or are cut from
real text once by whoever replays it. Output lengths are fixed; a replay whose real lengths differ is invalid.
"""
