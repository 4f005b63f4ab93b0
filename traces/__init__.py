"""Serving traces: schema and generator (numpy only)."""
