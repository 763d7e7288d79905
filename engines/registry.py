"""Finds the engines that are installed, without loading what they need."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from myna.engines.base import BackendUnavailable, EngineSpec, VoiceAsset

GROUP = "myna.engines"

# What this package itself brings, for a source tree whose metadata is not installed.
BUILT_IN: Mapping[str, str] = {
    "formant": "myna.engines.formant:SPEC",
    "rvc": "myna.engines.rvc:SPEC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The engines found, by name, and what was wrong with the others, by name, in words."""

    engines: Mapping[str, EngineSpec]
    problems: Mapping[str, str]

    def voices(self) -> tuple[VoiceAsset, ...]:
        """All voices that need no file, in the engines' order."""
        return tuple(asset for spec in self.engines.values() for asset in spec.built_in)

    def spec(self, name: str) -> EngineSpec:
        """An engine by name.

        Raises:
            BackendUnavailable: there is none; the message says why, or which there are.
        """
        if name in self.engines:
            return self.engines[name]
        if name in self.problems:
            raise BackendUnavailable(f"Engine {name!r} can't be used: {self.problems[name]}.", engine=name)
        known = ", ".join(self.engines)
        raise BackendUnavailable(f"There is no engine {name!r}, only {known}.", engine=name)


@cache
def installed_engines() -> Registry:
    """The engines of this process, looked for once."""
    return find_engines()


def specs() -> tuple[EngineSpec, ...]:
    """Every usable engine."""
    return tuple(installed_engines().engines.values())


def problems() -> Mapping[str, str]:
    """What was wrong with engines that can't be used, by name, in words."""
    return installed_engines().problems


def find(name: str) -> EngineSpec:
    """An engine by name.

    Raises:
        BackendUnavailable: there is none; the message says why, or which there are.
    """
    return installed_engines().spec(name)


def find_engines(installed: Iterable[EntryPoint] | None = None) -> Registry:
    """Import every engine's specification; one that is broken is reported and left out.

    A package of somebody else can't take the name of an engine that this one brings.

    Args:
        installed: Entry points to look at; None: those of the installed packages.
    """
    found = list(entry_points(group=GROUP) if installed is None else installed)
    wanted: list[tuple[str, str]] = list(BUILT_IN.items())
    engines: dict[str, EngineSpec] = {}
    faults: dict[str, str] = {}
    for point in sorted(found, key=lambda p: (p.name, p.value)):
        if point.name not in BUILT_IN:
            wanted.append((point.name, point.value))
        elif point.value != BUILT_IN[point.name]:
            faults[f"{point.name} ({point.value})"] = "the name is taken by an engine that comes with Myna"
    for name, target in wanted:
        if name in engines:
            faults[f"{name} ({target})"] = "another package has an engine of this name"
            continue
        try:
            engines[name] = _load(name, target)
        except ModuleNotFoundError as error:
            # A source tree, or a build, without one of the built-in engines is whole without it.
            if name in BUILT_IN and error.name == target.partition(":")[0]:
                continue
            faults[name] = _words(error)
        except Exception as error:  # whatever somebody else's module does when it is imported
            faults[name] = _words(error)
    return Registry(engines=engines, problems=faults)


def _load(name: str, target: str) -> EngineSpec:
    module, _, attribute = target.partition(":")
    spec: object = import_module(module)
    for part in attribute.split("."):
        spec = getattr(spec, part)
    if not isinstance(spec, EngineSpec):
        raise TypeError(f"{target} is {type(spec).__name__}, not an EngineSpec")
    if spec.name != name:
        raise ValueError(f"{target} calls itself {spec.name!r}")
    return spec


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
