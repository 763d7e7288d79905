"""The voices that a daemon knows, on disk and built in."""
