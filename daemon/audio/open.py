"""Open a stream by the names of its devices."""

from dataclasses import replace

from myna.daemon.audio.backend import AudioBackend, AudioStream, DeviceError, StreamRequest
from myna.daemon.audio.file import PREFIX as FILE_PREFIX
from myna.daemon.audio.file import FileBackend
from myna.daemon.audio.null import NAME as NULL
from myna.daemon.audio.null import NullBackend
from myna.daemon.audio.pair import PairStream
from myna.daemon.audio.portaudio import PortAudioBackend

FAKE_PREFIX = "fake:"


def family_of(name: str | None) -> str:
    """The backend a device name belongs to: file, null, fake or portaudio (any other name, and the default)."""
    if name is None:
        return "portaudio"
    if name.startswith(FILE_PREFIX):
        return "file"
    if name.startswith(FAKE_PREFIX):
        return "fake"
    return "null" if name == NULL else "portaudio"


def open_stream(request: StreamRequest, fast: bool = False, fake: AudioBackend | None = None) -> AudioStream:
    """Open what `request` names, not started; devices of different families become a pair of streams.

    Args:
        request: The devices.
        fast: Files and `null` only: as fast as the reader asks, not at the clock's pace.
        fake: The backend of `fake:` names, which only a test has.

    Raises:
        DeviceError: As the backends say; `failed` for `fast` with a real device.
    """
    families = [
        family_of(name)
        for wanted, name in ((request.want_input, request.input), (request.want_output, request.output))
        if wanted
    ]
    if fast and not set(families) <= {"file", "null"}:
        raise DeviceError("failed", "fast works with files only: a device keeps its own pace.")
    if len(families) == 2 and families[0] != families[1] and set(families) != {"file", "null"}:
        return _open_pair(request, families, fake)
    return _backend(families, fast, fake).open(request)


def _open_pair(request: StreamRequest, families: list[str], fake: AudioBackend | None) -> AudioStream:
    """The device first: a file or `null` has no rate of its own to insist on and takes the device's."""
    heard, played = replace(request, want_output=False), replace(request, want_input=False)
    if families[1] in ("file", "null"):
        source = open_stream(heard, fake=fake)
        try:
            rate_hz = source.facts.rate_in_hz
            return PairStream(source, open_stream(replace(played, rate_hz=rate_hz), fake=fake))
        except DeviceError:
            source.close()
            raise
    sink = open_stream(played, fake=fake)
    try:
        return PairStream(open_stream(replace(heard, rate_hz=sink.facts.rate_out_hz), fake=fake), sink)
    except DeviceError:
        sink.close()
        raise


def _backend(families: list[str], fast: bool, fake: AudioBackend | None) -> AudioBackend:
    if "fake" in families:
        if fake is None:
            raise DeviceError("not_found", "fake: devices exist in tests only.")
        return fake
    if "file" in families:
        return FileBackend(fast=fast)
    if "null" in families:
        return NullBackend(fast=fast)
    return PortAudioBackend()
