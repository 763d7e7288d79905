"""Settings of the daemon: a TOML file, environment overrides, validated whole, kept when changed."""

import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import tomlkit
from msgspec import Meta, Struct, field

from myna.control.codec import did_you_mean, validate
from myna.control.contract import ConfigValue, LiveSettings
from myna.control.errors import MynaError

PREFIX = "MYNA_"
Scalar = bool | int | float | str | None
SWITCH_WORDS = {"on": True, "yes": True, "true": True, "1": True, "off": False, "no": False, "false": False, "0": False}
S = TypeVar("S", bound=Struct)


class ControlSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients reach the daemon."""

    listen: Annotated[str, Meta(max_length=255)] | None = None  # None: private ipc; else tcp://HOST:PORT


class ComputeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how voices compute."""

    device: Annotated[str, Meta(pattern=r"^(auto|cpu|cuda:\d+|xpu:\d+|dml|mps)$")] = "auto"
    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] = "auto"
    backend: Literal["auto", "eager", "openvino", "onnxruntime"] = "auto"
    allow_cpu_fallback: bool = False
    threads: Annotated[int, Meta(ge=0, le=256)] = 0  # 0: half the cores; a live voice has two if there are
    gpu_jobs: Annotated[int, Meta(ge=1, le=16)] = 1
    cpu_jobs: Annotated[int, Meta(ge=0, le=64)] = 0  # 0: half the cores
    inference_jobs: Annotated[int, Meta(ge=1, le=16)] = 1
    unload_after_minutes: Annotated[float, Meta(ge=0, le=10080)] = 10.0  # 0: never


class JobSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The offline queue."""

    run_budget_s: Annotated[float, Meta(ge=0, le=21600)] = 0.0  # 0: from measured speed
    queue_budget_s: Annotated[float, Meta(ge=10, le=86400)] = 1800.0
    load_budget_s: Annotated[float, Meta(ge=10, le=21600)] = 1200.0
    max_waiting: Annotated[int, Meta(ge=1, le=1000000)] = 100000


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon's log file."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    max_mb: Annotated[float, Meta(ge=0.1, le=1024)] = 5.0
    keep: Annotated[int, Meta(ge=1, le=100)] = 3


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. A frozen value: a change is a new one."""

    live: LiveSettings = field(default_factory=LiveSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    log: LogSettings = field(default_factory=LogSettings)


SECTIONS: dict[str, type[Struct]] = {
    "live": LiveSettings,
    "compute": ComputeSettings,
    "jobs": JobSettings,
    "control": ControlSettings,
    "log": LogSettings,
}


def known_keys() -> list[str]:
    """Every key as `section.name`."""
    return [f"{section}.{name}" for section, kind in SECTIONS.items() for name in kind.__struct_fields__]


def replaced(base: S, values: Mapping[str, Scalar], what: str = "request") -> S:
    """`base` with `values` (by field name) in place; None sets a field back to its default.

    Words are taken as people write them: `on`, `off`, `yes` and `no` for a switch, and a switched-off number
    (`gate_db = false`) as `off`. MynaError("bad_request") reports every problem at once.
    """
    data: dict[str, Any] = dict(msgspec.to_builtins(base))
    switches = {f.name for f in _fields(type(base)) if isinstance(f.type, msgspec.inspect.BoolType)}
    for name, value in values.items():
        if value is None and name in data:
            del data[name]
        elif name in switches and isinstance(value, str):
            data[name] = SWITCH_WORDS.get(value.strip().lower(), value)
        elif value is False and name not in switches:
            data[name] = "off"
        else:
            data[name] = value
    return validate(type(base), data, what=what)


def _fields(kind: type[Struct]) -> tuple[msgspec.inspect.Field, ...]:
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.StructType):
        raise TypeError(f"{kind.__name__} is no struct")
    return info.fields


def parse_word(text: str) -> Scalar:
    """What a word in the environment means: true/false, a number, null, else itself."""
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("null", "none", ""):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def problem_lines(error: MynaError) -> list[str]:
    """The problems of a refused message, a line each."""
    listed = error.facts.get("problems")
    if not isinstance(listed, list):
        return [error.message]
    return [f"{each['field']}: {each['message']}" for each in listed]


class SettingsFile:
    """The settings file, its environment overrides, and what was changed at run time."""

    def __init__(self, path: Path, environment: Mapping[str, str] | None = None) -> None:
        """Read and validate `path` (may be absent) and MYNA_<SECTION>__<KEY> variables.

        Raises MynaError("config_invalid") naming every problem at once.
        """
        self.path = path
        self._sources: dict[str, str] = {}
        self.saved = True
        problems: list[str] = []
        self._document = self._read(problems)
        self.value = Settings()
        for section, values in self._document.unwrap().items():
            if section not in SECTIONS:
                problems.append(f"[{section}]: unknown section{did_you_mean(section, SECTIONS)}")
            elif not isinstance(values, dict):
                problems.append(f"{section}: must be a table")
            else:
                self._put(section, values, "file", problems)
        overrides = os.environ if environment is None else environment
        for variable, text in sorted(overrides.items()):
            section, separator, name = variable.removeprefix(PREFIX).lower().partition("__")
            if not variable.startswith(PREFIX) or not separator:
                continue
            if section not in SECTIONS:
                problems.append(f"{variable}: unknown section{did_you_mean(section, SECTIONS)}")
                continue
            self._put(section, {name: parse_word(text)}, "environment", problems, label=f"{variable}: ")
        if problems:
            raise MynaError(
                "config_invalid",
                f"The settings do not validate ({path}): " + "; ".join(problems),
                path=str(path),
                problems=problems,
            )

    def _read(self, problems: list[str]) -> tomlkit.TOMLDocument:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return tomlkit.document()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"the file cannot be read: {error}")
            return tomlkit.document()
        try:
            tomllib.loads(text)
            return tomlkit.parse(text)
        except (tomllib.TOMLDecodeError, ValueError) as error:
            problems.append(f"not valid TOML: {error}")
            return tomlkit.document()

    def _put(
        self, section: str, values: Mapping[str, Scalar], source: str, problems: list[str], label: str = ""
    ) -> None:
        # Field by field, so that one bad value does not hide that another is good or bad too.
        for name, value in values.items():
            try:
                new = replaced(getattr(self.value, section), {name: value})
            except MynaError as error:
                problems.extend(f"{label or section + '.'}{line}" for line in problem_lines(error))
                continue
            self.value = msgspec.structs.replace(self.value, **{section: new})
            self._sources[f"{section}.{name}"] = source

    def get(self, key: str | None = None) -> tuple[ConfigValue, ...]:
        """One setting or all, each with its source and default. MynaError("not_found") for an unknown key."""
        keys = known_keys()
        if key is not None and key not in keys:
            if key in SECTIONS:
                keys = [k for k in keys if k.startswith(f"{key}.")]
            else:
                raise MynaError("not_found", f"There is no setting {key!r}{did_you_mean(key, keys)}", key=key)
        elif key is not None:
            keys = [key]
        defaults = Settings()
        rows = []
        for full in keys:
            section, name = full.split(".")
            rows.append(
                ConfigValue(
                    key=full,
                    value=getattr(getattr(self.value, section), name),
                    default=getattr(getattr(defaults, section), name),
                    source=self._sources.get(full, "default"),  # type: ignore[arg-type]
                )
            )
        return tuple(rows)

    def set(self, values: Mapping[str, Scalar]) -> None:
        """Change settings (keys as `section.name`); all are checked before any is kept, then written to disk.

        A disk that refuses leaves them in force with `saved` false. Raises MynaError("bad_request") naming every
        problem.
        """
        problems: list[str] = []
        new = self.value
        for key, value in values.items():
            section, _, name = key.partition(".")
            if section not in SECTIONS or not name:
                problems.append(f"{key}: unknown setting{did_you_mean(key, known_keys())}")
                continue
            try:
                changed = replaced(getattr(new, section), {name: value})
            except MynaError as error:
                problems.extend(f"{section}.{line}" for line in problem_lines(error))
                continue
            new = msgspec.structs.replace(new, **{section: changed})
        if problems:
            raise MynaError("bad_request", "Not changed: " + "; ".join(problems), problems=problems)
        self.value = new
        for key, value in values.items():
            self._sources[key] = "default" if value is None else "runtime"
            section, _, name = key.partition(".")
            table = self._document.setdefault(section, tomlkit.table())
            if value is None:
                table.pop(name, None)
            else:
                table[name] = value
        self.save()

    def save(self) -> bool:
        """Write the file whole (temporary name, sync, rename); returns and keeps whether it is on disk."""
        temporary: str | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".settings-")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(tomlkit.dumps(self._document))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
            self.saved = True
        except OSError:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            self.saved = False
        return self.saved
