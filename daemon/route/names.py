"""What the virtual microphone's two ends are called."""

SINK = "myna_sink"
"""Node that the daemon plays into."""
MICROPHONE = "myna_microphone"
"""Node that applications record."""
SINK_TITLE = "Myna output"
MICROPHONE_TITLE = "Myna"
"""What applications list among the microphones."""
PCM = "Myna"
"""ALSA's name for the sink, by which PortAudio opens it."""
RATE_HZ = 48_000
