"""Voices behind one interface."""
