"""The messages of the wire: one struct per request and reply, one table of methods."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

PROTOCOL_VERSION = 1
MAGIC = b"MYNA1"
MAX_MESSAGE_BYTES = 1 << 20
MAX_IN_FLIGHT = 32

LiveState = Literal[
    "stopped", "starting", "loading", "warming", "running", "degraded", "reconnecting", "stopping", "failed"
]
JobState = Literal["queued", "waiting", "running", "done", "failed", "cancelled", "interrupted"]
JobKind = Literal["convert", "speak", "preview", "batch"]
F0Method = Literal["auto", "swift", "rmvpe", "fcpe", "crepe", "harvest", "dio", "pm"]
Denoise = Literal["off", "rnnoise", "deepfilter", "spectral"]

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=4096)]


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all that crosses the wire: frozen, keyed by name, unknown keys refused."""


# --- settings of a live session -------------------------------------------------------------------------


class LiveSettings(Message, frozen=True, kw_only=True):
    """What can change while a session runs. Ranges are the contract's; units are in the names."""

    block_ms: Annotated[float, Meta(ge=10, le=1500)] | Literal["auto"] = "auto"
    crossfade_ms: Annotated[float, Meta(ge=5, le=150)] = 50.0
    context_ms: Annotated[float, Meta(ge=50, le=5000)] | None = None  # None: the engine's best
    prefill_ms: Annotated[float, Meta(ge=0, le=1000)] | Literal["auto"] = "auto"
    pitch: Annotated[float, Meta(ge=-24, le=24)] = 0.0
    formant: Annotated[float, Meta(ge=-12, le=12)] = 0.0
    f0_method: F0Method = "auto"
    index_rate: Annotated[float, Meta(ge=0, le=1)] = 0.0
    protect: Annotated[float, Meta(ge=0, le=0.5)] = 0.33
    rms_mix: Annotated[float, Meta(ge=0, le=1)] = 1.0
    speaker_id: Annotated[int, Meta(ge=0, le=65535)] = 0
    autotune: Annotated[float, Meta(ge=0, le=1)] = 0.0
    unvoiced: Literal["protect", "zero", "original"] = "protect"
    gate_db: Annotated[float, Meta(ge=-90, le=0)] | Literal["off"] = "off"
    gate_attack_ms: Annotated[float, Meta(ge=0.1, le=50)] = 2.0
    gate_hold_ms: Annotated[float, Meta(ge=0, le=2000)] = 120.0
    gate_release_ms: Annotated[float, Meta(ge=1, le=2000)] = 80.0
    gate_hysteresis_db: Annotated[float, Meta(ge=0, le=24)] = 6.0
    vad: bool = False
    denoise_in: Denoise = "off"
    denoise_out: Denoise = "off"
    gain_in_db: Annotated[float, Meta(ge=-24, le=24)] = 0.0
    gain_out_db: Annotated[float, Meta(ge=-60, le=12)] = 0.0
    gain_monitor_db: Annotated[float, Meta(ge=-60, le=12)] = 0.0
    monitor_source: Literal["converted", "input", "both"] = "converted"
    limiter: bool = True
    target_latency_ms: Annotated[float, Meta(ge=1, le=5000)] | Literal["off"] = "off"


class LiveDevices(Message, frozen=True, kw_only=True):
    """Where a session reads and plays. A device is its name and host API, never an index.

    `file:PATH` reads or writes a sound file, paced by the clock; `null` is silence or nowhere.
    """

    input: Name | None = None  # None: the system's default
    output: Name | None = None
    monitor: Name | None = None  # None: no monitor
    host_api: Name | None = None  # None: the best one that has both devices
    rate_hz: Annotated[int, Meta(ge=8000, le=192000)] | None = None  # None: the device's own
    period_ms: Annotated[float, Meta(ge=2, le=50)] = 10.0
    input_channels: tuple[Annotated[int, Meta(ge=1, le=64)], ...] | None = None  # 1-based; None: all, mixed
    fast: bool = False  # file devices only: as fast as it computes


# --- requests and replies -------------------------------------------------------------------------------


class Empty(Message, frozen=True, kw_only=True):
    """A request or reply without content."""


class Hello(Message, frozen=True, kw_only=True):
    """Asks who is there."""

    protocol: int = PROTOCOL_VERSION
    client: Text = ""


class HelloReply(Message, frozen=True, kw_only=True):
    """Who is there."""

    protocol: int
    version: str
    pid: int
    state_dir: str
    events: str  # endpoint of the PUB socket


class SessionRef(Message, frozen=True, kw_only=True):
    """Names a live session."""

    session: Name = "main"


class LiveStart(Message, frozen=True, kw_only=True):
    """Starts (or restarts with other devices) a live session."""

    session: Name = "main"
    voice: Name | None = None  # None: the last used, else `formant`
    devices: LiveDevices | None = None  # None: the last used
    settings: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    bypass: bool = False
    wait: bool = True  # answer when it runs (or failed), not when it begins to start


class LiveSet(Message, frozen=True, kw_only=True):
    """Changes live settings; all are checked before any is applied."""

    values: dict[str, bool | int | float | str | None]
    session: Name = "main"
    consent: bool = False  # needed for monitor_source=input|both: the raw voice would be heard


class LiveSetReply(Message, frozen=True, kw_only=True):
    """What was applied."""

    revision: int
    settings: LiveSettings
    restart_needed: bool = False
    saved: bool = True


class LiveVoice(Message, frozen=True, kw_only=True):
    """Swaps the voice of a running session."""

    voice: Name
    session: Name = "main"


class LiveSwitch(Message, frozen=True, kw_only=True):
    """Bypass or mute, on or off."""

    on: bool
    session: Name = "main"


class LiveRecord(Message, frozen=True, kw_only=True):
    """Starts (path given) or stops (None) a recording."""

    session: Name = "main"
    path: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    source: Literal["input", "converted", "both"] = "converted"


class RecordReply(Message, frozen=True, kw_only=True):
    """Where a recording went."""

    path: str | None
    seconds: float | None
    dropped_frames: int = 0


class LatencyParts(Message, frozen=True, kw_only=True):
    """A delay and what it is made of; a part that was not measured is null."""

    compute_ms: float | None = None  # p99, measured
    algorithmic_ms: float | None = None  # block + crossfade + search + stages, declared
    device_in_ms: float | None = None
    device_out_ms: float | None = None
    prefill_ms: float | None = None
    estimated_ms: float | None = None  # sum of the parts
    loopback_ms: float | None = None  # measured through the devices by noise bursts
    peers_estimated_ms: float | None = None  # the peers' formula at the same block
    measured_at: float | None = None  # Unix seconds of the loopback measurement


class LatencyRequest(Message, frozen=True, kw_only=True):
    """Measures the loopback delay through the devices: output must be audible at the input."""

    session: Name = "main"
    bursts: Annotated[int, Meta(ge=3, le=50)] = 7
    through: Literal["devices", "engine"] = "devices"


class LatencyReply(Message, frozen=True, kw_only=True):
    """What was measured."""

    latency: LatencyParts
    reason: Literal["ok", "no_signal", "inconsistent", "not_measured"]
    delays_ms: tuple[float, ...] = ()
    peak_over_floor_db: tuple[float, ...] = ()
    correlation: tuple[float, ...] = ()  # downsampled envelope, for plots
    correlation_step_ms: float | None = None


class CheckRequest(Message, frozen=True, kw_only=True):
    """Times a voice over block lengths."""

    voice: Name | None = None
    session: Name = "main"


class CheckRow(Message, frozen=True, kw_only=True):
    """One block length of a check."""

    block_ms: float
    median_ms: float
    p95_ms: float
    load: float
    holds: bool


class CheckReply(Message, frozen=True, kw_only=True):
    """The table of a check, and the smallest block that holds."""

    voice: str
    rows: tuple[CheckRow, ...]
    smallest_ms: float | None


class DeviceInfo(Message, frozen=True, kw_only=True):
    """One end of a sound device as the host API tells it."""

    name: str
    host_api: str
    inputs: int
    outputs: int
    rate_hz: int
    latency_in_ms: float | None
    latency_out_ms: float | None
    is_default_input: bool = False
    is_default_output: bool = False
    is_virtual: bool = False


class DevicesReply(Message, frozen=True, kw_only=True):
    """All sound devices."""

    devices: tuple[DeviceInfo, ...]
    problem: str | None = None  # why the list is empty, with the cure


class DevicesTest(Message, frozen=True, kw_only=True):
    """Opens each device for a moment."""

    input: Name | None = None
    output: Name | None = None


class DeviceTestRow(Message, frozen=True, kw_only=True):
    """Whether a device could be opened."""

    name: str
    direction: Literal["input", "output"]
    ok: bool
    detail: str


class DevicesTestReply(Message, frozen=True, kw_only=True):
    """Result of a device test."""

    rows: tuple[DeviceTestRow, ...]


class VoiceInfo(Message, frozen=True, kw_only=True):
    """One voice."""

    id: str
    engine: str
    built_in: bool
    description: str = ""
    files: dict[str, str] = field(default_factory=dict)
    facts: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    defaults: dict[str, bool | int | float | str | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class VoicesReply(Message, frozen=True, kw_only=True):
    """All voices."""

    voices: tuple[VoiceInfo, ...]


class VoiceRef(Message, frozen=True, kw_only=True):
    """Names a voice."""

    voice: Name


class VoiceAdd(Message, frozen=True, kw_only=True):
    """Adds a voice, or an asset that voices need, from a file."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    id: Name | None = None
    index: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    replace: bool = False


class VoicePreset(Message, frozen=True, kw_only=True):
    """Keeps parameters with a voice: they hold wherever a session's setting is at its default, or a job asks nothing.

    Built-in voices are shifts themselves: pitch and formants that are asked for are added to theirs.
    """

    voice: Name
    values: dict[str, bool | int | float | str | None]


class SessionStatus(Message, frozen=True, kw_only=True):
    """What a live session does, as measured."""

    session: str
    state: LiveState
    stop_reason: str | None = None
    voice: str | None = None
    voice_unchanged: bool = False
    engine: str | None = None
    device: str | None = None  # compute device
    precision: str | None = None
    backend: str | None = None
    fallbacks: tuple[str, ...] = ()
    input: str | None = None
    output: str | None = None
    monitor: str | None = None
    host_api: str | None = None
    rate_hz: int | None = None
    period_ms: float | None = None
    duplex: bool | None = None
    block_ms: float | None = None
    block_auto: bool = True
    load: float | None = None
    advice: str | None = None
    latency: LatencyParts = LatencyParts()
    bypass: bool = False
    muted: bool = False
    recording: str | None = None
    blocks: int = 0
    xruns: int = 0  # stretches of silence that should not have been
    late_frames: int = 0
    dropped_frames: int = 0
    nonfinite_blocks: int = 0
    faults: int = 0
    restarts: int = 0
    restart_budget: int | None = None
    drift_ppm: float | None = None
    realtime: str | None = None  # what priority was had, or why not
    input_db: float | None = None
    output_db: float | None = None
    seconds: float | None = None
    pid: int | None = None
    rss_bytes: int | None = None
    model_bytes: int | None = None  # weights of the voice
    settings: LiveSettings = LiveSettings()  # in force: with what is kept with the voice
    revision: int = 0


class Warning_(Message, frozen=True, kw_only=True):  # noqa: N801 - `Warning` is a builtin
    """Something that wants the user's attention."""

    code: str
    message: str
    action: str


class StatusReply(Message, frozen=True, kw_only=True):
    """The daemon at a glance."""

    version: str
    pid: int
    uptime_s: float
    rss_bytes: int | None
    state_dir: str
    endpoint: str
    sessions: tuple[SessionStatus, ...]
    jobs: dict[str, int] = field(default_factory=dict)
    models: int = 0
    settings_saved: bool = True
    next_action: str | None = None
    warnings: tuple[Warning_, ...] = ()


class Shutdown(Message, frozen=True, kw_only=True):
    """Ends the daemon: `force` does not wait for jobs."""

    force: bool = False


class ConfigGet(Message, frozen=True, kw_only=True):
    """Asks for settings; None: all."""

    key: Name | None = None


class ConfigValue(Message, frozen=True, kw_only=True):
    """One setting, where its value came from, and its default."""

    key: str
    value: bool | int | float | str | None
    default: bool | int | float | str | None
    source: Literal["default", "file", "environment", "runtime"]
    description: str = ""


class ConfigReply(Message, frozen=True, kw_only=True):
    """Settings."""

    values: tuple[ConfigValue, ...]
    path: str
    saved: bool = True


class ConfigSet(Message, frozen=True, kw_only=True):
    """Changes settings; all are checked before any is kept."""

    values: dict[str, bool | int | float | str | None]


class DoctorRequest(Message, frozen=True, kw_only=True):
    """Asks what is wrong; with `simulate`, only what would be said of computing on a recorded machine."""

    simulate: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None


class Finding(Message, frozen=True, kw_only=True):
    """One finding of `doctor`."""

    area: str
    name: str
    level: Literal["ok", "info", "warning", "error"]
    message: str
    cure: str | None = None
    facts: dict[str, bool | int | float | str | None] = field(default_factory=dict)


class DoctorReply(Message, frozen=True, kw_only=True):
    """All findings; `healthy` is false if something needed fails."""

    findings: tuple[Finding, ...]
    healthy: bool


# --- jobs -----------------------------------------------------------------------------------------------

ParamValue = bool | int | float | str | None


class JobSpec(Message, frozen=True, kw_only=True):
    """One job: paths and numbers, never code."""

    kind: JobKind = "convert"
    input: Annotated[str, Meta(max_length=4096)] | None = None
    output: Annotated[str, Meta(min_length=1, max_length=4096)]
    voice: Name = "formant"
    parameters: dict[str, ParamValue] = field(default_factory=dict)
    exists: Literal["skip", "overwrite", "rename", "fail"] = "fail"
    format: Literal["auto", "wav", "flac", "mp3", "ogg"] = "auto"
    seconds: Annotated[float, Meta(gt=0, le=600)] | None = None  # previews: only so much
    key: Annotated[str, Meta(max_length=128)] | None = None  # same key submitted twice: one job


class JobsSubmit(Message, frozen=True, kw_only=True):
    """Submits jobs; all are accepted or none."""

    jobs: Annotated[tuple[JobSpec, ...], Meta(max_length=2000)]


class JobsSubmitted(Message, frozen=True, kw_only=True):
    """The jobs' ids, in order."""

    ids: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class JobsList(Message, frozen=True, kw_only=True):
    """Asks for jobs, newest last."""

    states: tuple[JobState, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=10000)] = 200
    after: str | None = None


class JobInfo(Message, frozen=True, kw_only=True):
    """One job."""

    id: str
    kind: JobKind
    state: JobState
    voice: str
    input: str | None
    output: str
    reason: str | None = None  # of waiting: gpu_busy, engine_busy, inference_jobs, live_running, …
    frees: str | None = None  # what would free it, in words
    progress: float | None = None
    segments_done: int = 0
    segments: int | None = None
    attempts: int = 0
    error: dict[str, object] | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    eta_s: float | None = None
    result: dict[str, object] | None = None


class JobsReply(Message, frozen=True, kw_only=True):
    """Jobs."""

    jobs: tuple[JobInfo, ...]
    total: int
    counts: dict[str, int] = field(default_factory=dict)


class JobRef(Message, frozen=True, kw_only=True):
    """Names a job."""

    id: Name


# --- models ---------------------------------------------------------------------------------------------


class ModelInfo(Message, frozen=True, kw_only=True):
    """One thing in memory."""

    id: str
    engine: str
    worker: str
    device: str
    dtype: str | None
    device_bytes: int | None
    ram_bytes: int | None
    loaded_at: float | None
    last_used: float | None
    busy: str | None = None  # busy:live, busy:job
    unloadable: bool = True
    why_not: str | None = None


class ModelsReply(Message, frozen=True, kw_only=True):
    """All that is in memory."""

    models: tuple[ModelInfo, ...]


class ModelUnload(Message, frozen=True, kw_only=True):
    """Unloads a model; None: all of the list."""

    id: Name | None = None


class UnloadRow(Message, frozen=True, kw_only=True):
    """What became of one id."""

    id: str
    done: bool
    reason: str | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None


class UnloadReply(Message, frozen=True, kw_only=True):
    """What became of each id."""

    rows: tuple[UnloadRow, ...]


class FlushRequest(Message, frozen=True, kw_only=True):
    """Lets go of caches, with `unload` of models too."""

    unload: bool = False


class FlushRow(Message, frozen=True, kw_only=True):
    """One worker's answer to a flush; a figure that was not measured is null."""

    worker: str
    outcome: Literal["done", "deferred", "failed"]
    reason: str | None = None
    before: dict[str, int | None] = field(default_factory=dict)  # allocated, reserved, process, driver_free
    after: dict[str, int | None] = field(default_factory=dict)


class FlushReply(Message, frozen=True, kw_only=True):
    """Every worker's answer to a flush."""

    rows: tuple[FlushRow, ...]


class Trace(Message, frozen=True, kw_only=True):
    """One job's timings from a closed vocabulary: no text, name, path or message."""

    job: str
    kind: JobKind
    outcome: JobState
    device: str | None
    engine: str | None
    queue_s: float | None
    load_s: float | None
    run_s: float | None
    audio_s: float | None
    segments: int
    attempts: int
    error_code: str | None = None


class TracesReply(Message, frozen=True, kw_only=True):
    """The last traces."""

    traces: tuple[Trace, ...]


METHODS: dict[str, tuple[type[Message], type[Message]]] = {
    "hello": (Hello, HelloReply),
    "status": (Empty, StatusReply),
    "shutdown": (Shutdown, Empty),
    "live.start": (LiveStart, SessionStatus),
    "live.stop": (SessionRef, SessionStatus),
    "live.set": (LiveSet, LiveSetReply),
    "live.voice": (LiveVoice, SessionStatus),
    "live.bypass": (LiveSwitch, SessionStatus),
    "live.mute": (LiveSwitch, SessionStatus),
    "live.record": (LiveRecord, RecordReply),
    "live.latency": (LatencyRequest, LatencyReply),
    "live.check": (CheckRequest, CheckReply),
    "live.state": (SessionRef, SessionStatus),
    "devices.list": (Empty, DevicesReply),
    "devices.test": (DevicesTest, DevicesTestReply),
    "voices.list": (Empty, VoicesReply),
    "voices.show": (VoiceRef, VoiceInfo),
    "voices.add": (VoiceAdd, VoiceInfo),
    "voices.remove": (VoiceRef, Empty),
    "voices.preset": (VoicePreset, VoiceInfo),
    "jobs.submit": (JobsSubmit, JobsSubmitted),
    "jobs.list": (JobsList, JobsReply),
    "jobs.show": (JobRef, JobInfo),
    "jobs.cancel": (JobRef, JobInfo),
    "jobs.retry": (JobRef, JobInfo),
    "jobs.run_now": (JobRef, JobInfo),
    "models.list": (Empty, ModelsReply),
    "models.unload": (ModelUnload, UnloadReply),
    "memory.flush": (FlushRequest, FlushReply),
    "doctor": (DoctorRequest, DoctorReply),
    "traces": (Empty, TracesReply),
    "config.get": (ConfigGet, ConfigReply),
    "config.set": (ConfigSet, ConfigReply),
}

EVENTS = ("live.state", "live.meters", "live.xrun", "job.progress", "job.state", "model.state", "log")


class Meters(Message, frozen=True, kw_only=True):
    """Levels of a session, published about ten times a second."""

    session: str
    input_db: float | None
    output_db: float | None
    load: float | None
    xruns: int
    gate_open: bool | None = None


class LogLine(Message, frozen=True, kw_only=True):
    """A log line that a user would want to see."""

    level: Literal["info", "warning", "error"]
    message: str


class JobProgress(Message, frozen=True, kw_only=True):
    """How far a job is."""

    id: str
    progress: float
    segments_done: int
    segments: int | None
    eta_s: float | None


EVENT_TYPES: dict[str, type[msgspec.Struct]] = {
    "live.state": SessionStatus,
    "live.meters": Meters,
    "live.xrun": SessionStatus,
    "job.progress": JobProgress,
    "job.state": JobInfo,
    "model.state": ModelInfo,
    "log": LogLine,
}
