"""A discrete-event simulator of serving, for hardware and sizes that are not here. Its numbers are simulation.

It knows how many tokens of a call are computed, reused and encoded, and what a token costs in which phase; from that
follow queues and times. It holds no caches and generates no text: what a method does to answers, whether its gate would
refuse, and how its pools fill are not simulated but stated (or measured, then fitted) in a cost file.
"""
