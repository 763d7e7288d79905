"""The virtual microphone."""
