"""What a new configuration asks of a running session: a pure function of two values."""

from enum import Enum

from myna.daemon.live.messages import SessionConfig

# Settings whose stage is built aside and crossfaded in.
PIPELINE_SETTINGS = ("denoise_in", "denoise_out", "vad", "context_ms", "crossfade_ms", "f0_method")


class Change(Enum):
    """The dearest thing that a new configuration asks of a running session."""

    NOTHING = 0
    PARAMETERS = 1  # applied at the next block boundary
    PIPELINE = 2  # built aside, then crossfaded in
    DEVICES = 3  # a stream must be reopened


def change(old: SessionConfig, new: SessionConfig) -> Change:
    """The dearest change from `old` to `new`."""
    if old.devices != new.devices or old.placement != new.placement:
        return Change.DEVICES
    if old.voice != new.voice or any(
        getattr(old.settings, name) != getattr(new.settings, name) for name in PIPELINE_SETTINGS
    ):
        return Change.PIPELINE
    if (old.settings, old.bypass, old.muted, old.monitor_consent) != (
        new.settings,
        new.bypass,
        new.muted,
        new.monitor_consent,
    ):
        return Change.PARAMETERS
    return Change.NOTHING
