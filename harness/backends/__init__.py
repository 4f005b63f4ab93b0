"""Engines: each turns a plan into keys, values, logits and tokens."""
