"""Tasks: load items, build the question, extract and score the answer."""
