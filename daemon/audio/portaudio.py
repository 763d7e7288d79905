"""Sound devices through PortAudio, with the core's C function as the callback."""

import contextlib
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from myna.daemon._core import Core
from myna.daemon.audio.asleep import SleepWatch
from myna.daemon.audio.backend import AudioStream, DeviceError, StreamFacts, StreamRequest
from myna.daemon.audio.choose import Direction, Listed, best_pair, candidates, one_clock
from myna.daemon.audio.moved import MoveWatch
from myna.daemon.audio.pair import PairStream
from myna.daemon.audio.realtime import Realtime
from myna.daemon.audio.ring import make_core

SILENT_S = 0.5  # a started stream without a callback for so long is lost, whatever the host says
FIRST_CALLBACK_S = 3.0
CLOSE_S = 1.0
FADE_S = 0.06
REFRESH_S = 3.0
# ALSA's plug-ins accept any rate and PortAudio lists 44100 for them, but the servers behind them run at 48000.
ALSA_RATES_HZ = (48000, 44100)
MAX_MIXED_CHANNELS = 2

# PortAudio's error codes.
REASONS = {
    -9999: "failed",  # unanticipated host error; its text tells more
    -9998: "format",
    -9997: "rate",
    -9996: "not_found",
    -9994: "format",
    -9993: "failed",
    -9985: "busy",
}
HOST_TEXTS = (
    ("permission", "permission"),
    ("not permitted", "permission"),
    ("busy", "busy"),
    ("connection refused", "no_server"),
    ("no such", "not_found"),
    ("no default", "not_found"),
)

# PortAudio is one per process: its list can only be read anew while no stream is open, anywhere in the process. This
# also keeps a stream that somebody forgot to close, or that would not close, alive: its callback still uses the core.
_OPEN: "set[PortAudioStream]" = set()
_HUNG: "set[PortAudioStream]" = set()


def hung_streams() -> int:
    """Streams that did not close in time: their threads are the host's and can only be ended with the process."""
    return len(_HUNG)


def library() -> Any:
    """The sounddevice module. DeviceError `no_server` if PortAudio is not installed."""
    try:
        import sounddevice
    except OSError as error:
        raise DeviceError(
            "no_server", f"PortAudio is missing ({error}): install it (Debian: libportaudio2)."
        ) from error
    return sounddevice


def list_devices() -> list[Listed]:
    """All devices PortAudio sees now. DeviceError if it sees none at all because it can't be used."""
    fresh = "sounddevice" not in sys.modules
    sd = library()
    if not fresh and not _OPEN:
        _refresh(sd)
    try:
        hosts = list(sd.query_hostapis())
        system = tuple(sd.default.device)
        return [_listed(index, info, hosts, system) for index, info in enumerate(sd.query_devices())]
    except sd.PortAudioError as error:
        raise device_error(error, "listing the sound devices") from error


def _listed(index: int, info: dict[str, Any], hosts: list[dict[str, Any]], system: tuple[int, ...]) -> Listed:
    host = hosts[info["hostapi"]]
    inputs, outputs = info["max_input_channels"], info["max_output_channels"]
    return Listed(
        index=index,
        name=info["name"],
        host_api=host["name"],
        inputs=inputs,
        outputs=outputs,
        rate_hz=round(info["default_samplerate"]),
        latency_in_ms=sane_ms(info["default_low_input_latency"]) if inputs else None,
        latency_out_ms=sane_ms(info["default_low_output_latency"]) if outputs else None,
        default_input=host["default_input_device"] == index,
        default_output=host["default_output_device"] == index,
        system_default_input=index == system[0],
        system_default_output=index == system[1],
    )


def sane_ms(seconds: float) -> float | None:
    """A host's latency in ms; None where it is garbage (JACK under PipeWire tells years)."""
    return 1e3 * seconds if 0.0 < seconds < 5.0 else None


def _refresh(sd: Any) -> None:
    """Let PortAudio look again. A dead JACK server blocks this for ever: then only a new process helps."""

    def again() -> None:
        sd._terminate()
        sd._initialize()

    if sys.platform != "linux":
        again()  # COM wants the thread that initialised, and nothing is known to block here
        return
    thread = threading.Thread(target=again, name="device list", daemon=True)
    thread.start()
    thread.join(REFRESH_S)
    if thread.is_alive():
        raise DeviceError("failed", "The sound system does not answer; a new process is needed.")


def device_error(error: Exception, doing: str) -> DeviceError:
    """What a PortAudioError means."""
    code = error.args[1] if len(error.args) > 1 else 0
    text = str(error.args[0]) if error.args else str(error)
    if len(error.args) > 2:
        text += f" ({error.args[2][2]})"
    reason = REASONS.get(code, "failed")
    if reason == "failed":
        lower = text.lower()
        reason = next((known for part, known in HOST_TEXTS if part in lower), reason)
    return DeviceError(reason, f"{doing[:1].upper()}{doing[1:]} failed: {text}.", portaudio_code=code)


class PortAudioBackend:
    """Devices by name and host API. Duplex where both are known to share a clock and a rate, else two streams."""

    name = "portaudio"

    def open(self, request: StreamRequest) -> AudioStream:
        """Find and open the devices. DeviceError with its reason, and near names if there are any."""
        sd = library()
        devices = list_devices()
        if not (request.want_input or request.want_output):
            raise DeviceError("failed", "A stream needs an input or an output.")
        heard = candidates(devices, request.input, "input", request.host_api) if request.want_input else []
        played = candidates(devices, request.output, "output", request.host_api) if request.want_output else []
        if not (heard and played):
            device = (heard or played)[0]
            direction: Direction = "input" if heard else "output"
            rate_hz = _rate(sd, device, direction, request)
            return _open(sd, request, device if heard else None, device if played else None, rate_hz)
        source, sink = best_pair(heard, played)
        rate_in, rate_out = _rate(sd, source, "input", request), _rate(sd, sink, "output", request)
        if rate_in == rate_out and (request.one_clock or one_clock(source, sink)):
            with contextlib.suppress(sd.PortAudioError):
                return _open_stream(sd, request, source, sink, rate_out)
            # Some hosts serve both devices, but not in one stream.
        stream = _open(sd, replace(request, want_output=False), source, None, rate_in)
        try:
            return PairStream(stream, _open(sd, replace(request, want_input=False), None, sink, rate_out))
        except DeviceError:
            stream.close()
            raise


def _rate(sd: Any, device: Listed, direction: Direction, request: StreamRequest) -> int:
    """The asked rate, or the device's own.

    Raises:
        DeviceError: the device can't be used now. That is no word about a rate: one that came back between two
            questions was opened at 44100 Hz.
    """
    if request.rate_hz is not None:
        return request.rate_hz
    if device.host_api != "ALSA":
        return device.rate_hz
    check = sd.check_input_settings if direction == "input" else sd.check_output_settings
    for rate_hz in (*ALSA_RATES_HZ, device.rate_hz):
        try:
            check(device=device.index, channels=1, dtype="float32", samplerate=rate_hz)
            return rate_hz
        except sd.PortAudioError as error:
            problem = device_error(error, f"opening {device.name!r} at {rate_hz} Hz")
            if problem.reason not in ("rate", "format"):
                raise problem from error
    return device.rate_hz


def _open(
    sd: Any, request: StreamRequest, source: Listed | None, sink: Listed | None, rate_hz: int
) -> "PortAudioStream":
    try:
        return _open_stream(sd, request, source, sink, rate_hz)
    except sd.PortAudioError as error:
        names = " and ".join(repr(device.name) for device in (source, sink) if device is not None)
        raise device_error(error, f"opening {names} at {rate_hz} Hz") from error


def _open_stream(
    sd: Any, request: StreamRequest, source: Listed | None, sink: Listed | None, rate_hz: int
) -> "PortAudioStream":
    in_map = _input_map(request, source) if source is not None else ()
    in_channels = max(in_map) + 1 if in_map else 0
    out_channels = min(sink.outputs, MAX_MIXED_CHANNELS) if sink is not None else 0
    core = make_core(rate_hz, request.capacity_ms, in_channels=in_channels, out_channels=out_channels, in_map=in_map)
    return PortAudioStream(sd, core, source, sink, in_channels, out_channels, rate_hz, request.period_ms)


def _input_map(request: StreamRequest, source: Listed) -> tuple[int, ...]:
    if request.input_channels is None:
        return tuple(range(min(source.inputs, MAX_MIXED_CHANNELS)))
    if not request.input_channels or not all(0 <= c < source.inputs for c in request.input_channels):
        chosen = ", ".join(str(c + 1) for c in request.input_channels)
        raise DeviceError(
            "format",
            f"{source.name!r} has input channels 1 to {source.inputs}, not {chosen or 'none'}.",
            channels=source.inputs,
        )
    return request.input_channels


class PortAudioStream:
    """One PortAudio stream on one core. Implements AudioStream."""

    def __init__(
        self,
        sd: Any,
        core: Core,
        source: Listed | None,
        sink: Listed | None,
        in_channels: int,
        out_channels: int,
        rate_hz: int,
        period_ms: float,
    ) -> None:
        """Open it. sounddevice's PortAudioError if the host refuses."""
        self._core, self._source, self._sink = core, source, sink
        self._rate, self._period = rate_hz, max(1, round(period_ms * rate_hz / 1000))
        self._realtime = Realtime()
        self._asleep = SleepWatch()
        self._finished = self._closing = False
        self._started_s: float | None = None
        self._seen: tuple[int, float] = (0, 0.0)  # latest callback's stamp, and when it was new
        self._error = sd.PortAudioError
        pair = source is not None and sink is not None
        hosts = {device.host_api for device in (source, sink) if device is not None}
        self._moves = MoveWatch() if "ALSA" in hosts else None  # behind which a sound server may be
        devices = tuple(device.index for device in (source, sink) if device is not None)
        channels = tuple(count for count in (in_channels, out_channels) if count)
        with self._realtime.lent():  # the host's own helper threads begin here
            self._stream = sd._StreamBase(
                kind="duplex" if pair else "input" if source is not None else "output",
                samplerate=rate_hz,
                blocksize=self._period,
                device=devices if pair else devices[0],
                channels=channels if pair else channels[0],
                dtype="float32",
                latency="low",
                clip_off=True,  # the limiter's business, and NaN is none of PortAudio's
                dither_off=True,
                callback=sd._ffi.cast("PaStreamCallback*", core.callback),
                userdata=sd._ffi.cast("void*", core.userdata),
                finished_callback=self._finish,
            )
        _OPEN.add(self)

    def _finish(self) -> None:
        """Called by PortAudio on its thread when callbacks have come to an end."""
        self._finished = True

    @property
    def facts(self) -> StreamFacts:
        """What was opened, as the host tells it."""
        latency = self._stream.latency
        latency_in, latency_out = latency if isinstance(latency, tuple) else (latency, latency)
        hears, plays = self._source is not None, self._sink is not None
        device = self._source or self._sink
        return StreamFacts(
            input=self._source.name if self._source is not None else None,
            output=self._sink.name if self._sink is not None else None,
            host_api=device.host_api if device is not None else "",
            rate_in_hz=self._rate if hears else None,
            rate_out_hz=self._rate if plays else None,
            period_in_frames=self._period if hears else None,
            period_out_frames=self._period if plays else None,
            device_in_ms=sane_ms(latency_in) if hears else None,
            device_out_ms=sane_ms(latency_out) if plays else None,
            duplex=hears and plays,
            realtime=self._realtime.told,
        )

    @property
    def source(self) -> Core | None:
        """The core, if it hears."""
        return self._core if self._source is not None else None

    @property
    def sink(self) -> Core | None:
        """The core, if it plays."""
        return self._core if self._sink is not None else None

    def start(self) -> None:
        """Let callbacks begin. DeviceError if the device refuses."""
        try:
            with self._realtime.lent():
                self._stream.start()
        except self._error as error:
            raise device_error(error, "starting the stream") from error
        self._started_s = time.monotonic()
        if self._moves is not None:
            self._moves.start()

    def ended(self) -> str | None:
        """`lost` when the host stopped the stream, no callback came for half a second, or the machine slept.

        Also when callbacks come again after such a while (this process was stopped, or the server): what the host has
        kept for us meanwhile is old, and would be played as late as that.
        """
        if self._closing or self._started_s is None:
            return None
        if self._finished or self._asleep.slept():
            return "lost"
        if self._moves is not None and self._moves.moved:
            self._core.silence(True)
            return "lost"
        if self._core.stats()["max_gap_ns"] > 1e9 * SILENT_S:
            self._core.silence(True)
            return "lost"
        now, stamp = time.monotonic(), self._core.stamp()[0]
        if stamp != self._seen[0]:
            self._seen = (stamp, now)
        since = self._seen[1] if self._seen[0] else self._started_s
        return "lost" if now - since > (SILENT_S if self._seen[0] else FIRST_CALLBACK_S) else None

    def close(self) -> None:
        """Fade out, stop, release. What still hangs after a second is left to the process's end."""
        if self._closing:
            return
        lost = self.ended() is not None
        self._closing = True
        if self._moves is not None:
            self._moves.close()
        if self._sink is not None and self._started_s is not None and not lost:
            self._core.silence(True)
            enough = self._core.stats()["callbacks"] + 2
            deadline = time.monotonic() + FADE_S
            while self._core.stats()["callbacks"] < enough and time.monotonic() < deadline:
                time.sleep(0.002)
        thread = threading.Thread(target=self._release, name="closing a stream", daemon=True)
        thread.start()
        thread.join(CLOSE_S - FADE_S)
        if not thread.is_alive():
            _OPEN.discard(self)
        else:
            _HUNG.add(self)

    def _release(self) -> None:
        """Abort and close; keeps the core alive for as long as the host may still call it."""
        with contextlib.suppress(self._error):
            if self._started_s is not None and not self._finished:
                self._stream.abort()
        with contextlib.suppress(self._error):
            self._stream.close()
