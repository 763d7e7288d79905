"""What a new configuration asks of a running session: pure functions of two values."""

from enum import Enum

import msgspec

from myna.daemon.live.messages import SessionConfig

# Settings whose stage is built aside and crossfaded in.
PIPELINE_SETTINGS = ("denoise_in", "denoise_out", "vad", "context_ms", "crossfade_ms", "f0_method")
# Those of them that the voice itself is built with.
VOICE_SETTINGS = ("context_ms", "crossfade_ms", "f0_method")


class Change(Enum):
    """The dearest thing that a new configuration asks of a running session."""

    NOTHING = 0
    PARAMETERS = 1  # applied at the next block boundary
    PIPELINE = 2  # built aside, then crossfaded in
    DEVICES = 3  # a stream must be reopened


def change(old: SessionConfig, new: SessionConfig) -> Change:
    """The dearest change from `old` to `new`."""
    if old.devices != new.devices:
        return Change.DEVICES
    if (old.voice, old.placement) != (new.voice, new.placement) or any(
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


def same_voice(old: SessionConfig, new: SessionConfig) -> bool:
    """Whether a voice loaded for `old` serves `new` as it is."""
    return (old.voice, old.placement) == (new.voice, new.placement) and all(
        getattr(old.settings, name) == getattr(new.settings, name) for name in VOICE_SETTINGS
    )


def with_parameters(built: SessionConfig, newest: SessionConfig) -> SessionConfig:
    """Devices, voice and stages of `built`, everything that needs no building from `newest`.

    While a voice loads, switches and gains go on changing; and when it fails to load, they stay changed.
    """
    kept = {name: getattr(built.settings, name) for name in PIPELINE_SETTINGS}
    return msgspec.structs.replace(
        built,
        settings=msgspec.structs.replace(newest.settings, **kept),
        bypass=newest.bypass,
        muted=newest.muted,
        monitor_consent=newest.monitor_consent,
        revision=max(built.revision, newest.revision),
    )
