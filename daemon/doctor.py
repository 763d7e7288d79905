"""Findings about this machine, each with its cure."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from myna.control.contract import DoctorReply, Finding, SessionStatus, Warning_
from myna.daemon.audio.enumerate import list_in_child
from myna.daemon.settings import SettingsFile
from myna.daemon.voices.library import VoiceLibrary

PACKAGES = {
    "numpy": "daemon", "scipy": "daemon", "sounddevice": "daemon", "soundfile": "daemon", "soxr": "daemon",
    "torch": "rvc", "faiss": "rvc", "swift_f0": "rvc", "openvino": "rvc", "onnxruntime": "daemon",
}  # fmt: skip
LEAST_FREE_BYTES = 500_000_000


def examine(
    *, state: Path, settings: SettingsFile, voices: VoiceLibrary, sessions: Iterable[SessionStatus]
) -> DoctorReply:
    """Everything that `myna doctor` tells. Runs child processes: never on the control thread."""
    # Only now: what they need would slow every start of the daemon.
    from myna.daemon.compute import probe
    from myna.daemon.compute.decision import ComputeSettings
    from myna.daemon.route import findings as route
    from myna.daemon.service import findings as service

    asked = settings.value.compute
    parts: tuple[Callable[[], Iterable[Finding]], ...] = (
        lambda: _disk(state, settings),
        _packages,
        _sound,
        _realtime,
        route.findings,
        lambda: service.findings(state),
        lambda: probe.doctor_findings(
            ComputeSettings(device=asked.device, precision=asked.precision, allow_cpu_fallback=asked.allow_cpu_fallback)
        ),
        lambda: _voices(voices),
        lambda: _sessions(sessions),
    )
    found = [finding for part in parts for finding in part()]
    return DoctorReply(findings=tuple(found), healthy=all(each.level != "error" for each in found))


def session_warnings(session: SessionStatus) -> list[Warning_]:
    """What of a session wants attention, most pressing first."""
    found: list[Warning_] = []
    name = session.session
    if session.state == "failed":
        found.append(
            Warning_(
                code="session_failed",
                message=f"Session {name} failed: {session.stop_reason}.",
                action="Mend the cause, then `myna live start`.",
            )
        )
    if session.state == "reconnecting":
        found.append(
            Warning_(
                code="device_lost",
                message=f"Session {name} waits for its device: {session.stop_reason}.",
                action="Plug it in again, or choose another with `myna live start --input … --output …`.",
            )
        )
    if session.advice is not None:
        found.append(Warning_(code="overload", message=f"Session {name}: {session.advice}", action=session.advice))
    if session.state in ("running", "degraded") and session.voice_unchanged and not session.bypass:
        found.append(
            Warning_(
                code="voice_unchanged",
                message=f"Session {name}: the voice is unchanged, {session.voice!r} is your own voice.",
                action="Choose a voice with `myna live voice V`.",
            )
        )
    return found


def _finding(area: str, name: str, level: str, message: str, cure: str | None = None, **facts: object) -> Finding:
    return Finding(area=area, name=name, level=level, message=message, cure=cure, facts=facts)  # type: ignore[arg-type]


def _disk(state: Path, settings: SettingsFile) -> Iterable[Finding]:
    try:
        with tempfile.TemporaryFile(dir=state) as file:
            file.write(b"\0" * 4096)
        free = shutil.disk_usage(state).free
        level = "ok" if free >= LEAST_FREE_BYTES else "warning"
        yield _finding(
            "disk", "state", level, f"{state} is writable, {free / 1e9:.1f} GB free.",
            None if level == "ok" else "Free some space: jobs and recordings need it.", free_bytes=free,
        )  # fmt: skip
    except OSError as error:
        yield _finding("disk", "state", "error", f"{state} can't be written: {error}.", "Free space or permissions.")
    if settings.saved:
        yield _finding("disk", "settings", "ok", f"Settings are kept in {settings.path}.")
    else:
        yield _finding(
            "disk", "settings", "error", f"{settings.path} can't be written: changes last until the daemon ends.",
            "Free space or permissions there.",
        )  # fmt: skip


def _packages() -> Iterable[Finding]:
    for name, extra in PACKAGES.items():
        if find_spec(name) is not None:
            yield _finding("packages", name, "ok", f"{name} is installed.")
        else:
            level = "error" if extra == "daemon" else "info"
            yield _finding(
                "packages", name, level, f"{name} is not installed.", f"pip install 'myna[{extra}]'", extra=extra
            )


def _sound() -> Iterable[Finding]:
    listed = list_in_child()
    inputs = sum(1 for device in listed.devices if device.inputs)
    outputs = sum(1 for device in listed.devices if device.outputs)
    if listed.problem is not None:
        yield _finding("sound", "devices", "error", listed.problem, "Start the sound server, then `myna devices`.")
    elif not inputs or not outputs:
        yield _finding(
            "sound", "devices", "warning", f"{inputs} inputs and {outputs} outputs were found.",
            "Connect a microphone, or run on files: `myna up --input file:speech.wav --output file:out.wav`.",
            inputs=inputs, outputs=outputs,
        )  # fmt: skip
    else:
        yield _finding(
            "sound", "devices", "ok", f"{inputs} inputs and {outputs} outputs.", inputs=inputs, outputs=outputs
        )


def _realtime() -> Iterable[Finding]:
    if not sys.platform.startswith("linux"):
        return
    import resource  # POSIX only

    allowed = resource.getrlimit(resource.RLIMIT_RTPRIO)[1]
    if os.geteuid() == 0 or allowed != 0:  # -1: no limit
        yield _finding("sound", "priority", "ok", "Real-time priority is allowed.")
    else:
        yield _finding(
            "sound", "priority", "info", "Real-time priority is not allowed: other programs may interrupt the sound.",
            "Add your user to the group `audio` or `realtime`, or set `@audio - rtprio 40` in /etc/security/limits.d.",
        )  # fmt: skip


def _voices(voices: VoiceLibrary) -> Iterable[Finding]:
    for info in voices.infos():
        if info.built_in:
            continue
        shown = voices.show(info.id)
        if shown.problems:
            yield _finding("voices", info.id, "warning", "; ".join(shown.problems), f"myna voices show {info.id}")
        else:
            yield _finding("voices", info.id, "ok", f"{info.engine} voice, whole.")


def _sessions(sessions: Iterable[SessionStatus]) -> Iterable[Finding]:
    for session in sessions:
        for warning in session_warnings(session):
            yield _finding("live", session.session, "warning", warning.message, warning.action)
