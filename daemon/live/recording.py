"""A session's recording: it outlives the streams, as long as their rate stays the same."""

from collections.abc import Callable
from pathlib import Path

from myna.control.contract import RecordReply
from myna.control.errors import MynaError
from myna.daemon.live.recorder import Recorder
from myna.daemon.live.running import Running

Told = Callable[[RecordReply | Exception], None]


class Recording:
    """At most one recorder, put into whatever stream runs. Calls come from the worker's main thread and the builder."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._recorder: Recorder | None = None

    @property
    def path(self) -> str | None:
        """Where the recording that runs goes; None where none does."""
        recorder = self._recorder
        return str(recorder.path) if recorder is not None else None

    def start(self, path: Path, source: str, running: Running | None) -> RecordReply:
        """Begin. MynaError where one runs already, nothing is to be recorded, or the file can't be made."""
        if self._recorder is not None:
            raise MynaError("busy", f"A recording to {self._recorder.path} runs: stop it first.")
        if running is None:
            raise MynaError("refused", "The session does not run yet.")
        try:
            recorder = Recorder(path, running.rate_hz, source)
        except Exception as error:  # a disk's or libsndfile's, of many kinds: told to who asked
            raise MynaError("failed", f"Can't record to {path}: {error}", path=str(path)) from error
        self._recorder = recorder
        running.pipeline.taps = (recorder,)
        return RecordReply(path=str(path), seconds=None)

    def stop(self, running: Running | None, told: Told) -> None:
        """Finish; `told` hears of the whole file, or what kept it from being written. MynaError if none runs."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            raise MynaError("refused", "No recording runs.")
        if running is not None:
            running.pipeline.taps = ()
        recorder.finish(lambda got: told(_failure(recorder, got) if isinstance(got, Exception) else got))

    def resume(self, running: Running) -> None:
        """Go on in another stream; at another rate the recording ends, for a file has one."""
        recorder = self._recorder
        if recorder is None:
            return
        if recorder.rate_hz == running.rate_hz:
            running.pipeline.taps = (recorder,)
            return
        self._recorder = None
        recorder.finish(lambda reply: None)
        self._warn(f"the recording to {recorder.path} ended: the device runs at {running.rate_hz} Hz now")

    def close(self, patience_s: float) -> None:
        """Finish what runs, if anything does, and wait for it."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.finish(lambda reply: None)
            recorder.join(patience_s)


def _failure(recorder: Recorder, error: Exception) -> MynaError:
    return MynaError("failed", f"The recording to {recorder.path} failed: {error}", path=str(recorder.path))
