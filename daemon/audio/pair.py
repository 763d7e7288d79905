"""Two one-way streams as one: where input and output have no common clock."""

from myna.daemon._core import Core
from myna.daemon.audio.backend import AudioStream, StreamFacts


class PairStream:
    """An input stream and an output stream, each with a core and a clock of its own. Implements AudioStream."""

    def __init__(self, heard: AudioStream, played: AudioStream) -> None:
        self._heard, self._played = heard, played

    @property
    def facts(self) -> StreamFacts:
        """The facts of both; host APIs and priorities that differ are told as `input / output`."""
        heard, played = self._heard.facts, self._played.facts
        return StreamFacts(
            input=heard.input,
            output=played.output,
            host_api=_both(heard.host_api, played.host_api),
            rate_in_hz=heard.rate_in_hz,
            rate_out_hz=played.rate_out_hz,
            period_in_frames=heard.period_in_frames,
            period_out_frames=played.period_out_frames,
            device_in_ms=heard.device_in_ms,
            device_out_ms=played.device_out_ms,
            duplex=False,
            realtime=_both(heard.realtime, played.realtime),
        )

    @property
    def source(self) -> Core | None:
        """The input's core."""
        return self._heard.source

    @property
    def sink(self) -> Core | None:
        """The output's core."""
        return self._played.sink

    def start(self) -> None:
        """Start the output first: it plays silence until it is written to."""
        self._played.start()
        self._heard.start()

    def ended(self) -> str | None:
        """Why the first of the two ended."""
        return self._heard.ended() or self._played.ended()

    def close(self) -> None:
        """Close both."""
        self._heard.close()
        self._played.close()


def _both(one: str, other: str) -> str:
    return one if one == other else f"{one} / {other}"
