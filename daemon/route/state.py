"""What is there of the virtual microphone, as the sound server tells it."""

from dataclasses import dataclass
from typing import Literal

ServerKind = Literal["pipewire", "pulseaudio"]
Reason = Literal["ok", "no_signal", "in_use", "no_tools", "not_there"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteState:
    """One look at the server's nodes."""

    sinks: int  # nodes that bear the sink's name; more than one is a defect
    microphones: int
    joined: bool  # whether what is played into the sink comes out of the microphone, by the server's own word
    listeners: int  # applications that record the microphone now
    default_sink: str | None
    default_source: str | None

    @property
    def whole(self) -> bool:
        """Whether all of it is there, once."""
        return self.sinks == 1 and self.microphones == 1 and self.joined

    @property
    def any(self) -> bool:
        """Whether something of it is there."""
        return bool(self.sinks or self.microphones)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a tone showed. A figure that was not measured is None."""

    reason: Reason
    level_db: float | None = None
    snr_db: float | None = None
