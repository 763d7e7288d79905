"""Offline jobs: store, scheduler, executor."""
