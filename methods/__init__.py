"""Methods decide what to reuse and how to correct it; they never run a model, read a clock or a file."""
