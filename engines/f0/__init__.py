"""Fundamental frequency: extractors behind one interface, and the shaping of their curves."""
