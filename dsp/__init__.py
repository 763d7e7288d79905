"""Streaming arithmetic on numpy."""
