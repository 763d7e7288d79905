"""The live worker: one session from microphone to virtual microphone."""
