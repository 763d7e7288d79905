"""Where each engine computes: this machine's accelerators and the settings, decided once and remembered."""

import dataclasses
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from myna.control.errors import MynaError
from myna.daemon.orders import PlacementOrder
from myna.daemon.settings import ComputeSettings
from myna.engines import registry
from myna.engines.base import EngineSpec

if TYPE_CHECKING:  # the tables of cards are only needed by the probe: the daemon's start does not wait for them
    from myna.daemon.compute.decision import Decision

log = logging.getLogger(__name__)

PROBE_WAIT_S = 1.5  # on the control thread: a tool that takes longer is asked for again by the client


class Placing:
    """Probes the accelerators in the background, answers from what is known.

    An engine that computes on the CPU only is never asked to wait for the probe.
    """

    def __init__(self, settings: ComputeSettings, cache_dir: Path) -> None:
        self._settings, self._cache_dir = settings, cache_dir
        self._decision: Decision | None = None
        self._ready = threading.Event()

    def start(self) -> None:
        """Begin to look for accelerators."""
        threading.Thread(target=self._probe, name="compute-probe", daemon=True).start()

    def change_settings(self, settings: ComputeSettings) -> None:
        """Decide anew with other settings."""
        self._settings = settings
        self._ready.clear()
        self.start()

    def _probe(self) -> None:
        from myna.daemon.compute import decision, probe

        asked = decision.ComputeSettings(
            device=self._settings.device,
            precision=self._settings.precision,
            allow_cpu_fallback=self._settings.allow_cpu_fallback,
        )
        try:
            _, self._decision = probe.probe(asked)
        except Exception:  # a vendor's tool must not keep the built-in voice from running
            log.exception("looking for accelerators failed; computing on the CPU")
        finally:
            self._ready.set()

    def threads(self) -> int:
        """Threads for a live voice on the CPU: as set, else half the cores, but two if there are two, at most four.

        On two cores without tiles an RVC block of 100 ms takes 170 ms with one thread and 94 with two.
        """
        cores = os.cpu_count() or 1
        return self._settings.threads or max(min(2, cores), min(4, cores // 2))

    def live(self, engine: str) -> PlacementOrder:
        """Where a live voice computes. MynaError("compute_unavailable") if a named device is missing."""
        decision = self._for(registry.find(engine))
        if decision is not None and not decision.live_allowed:
            raise MynaError(
                "compute_unavailable",
                f"{decision.reason} A live session does not fall back to the CPU unless "
                "compute.allow_cpu_fallback is on.",
                reason="no_device",
            )
        return PlacementOrder(
            device=decision.device if decision else "cpu",
            precision=decision.precision if decision else "fp32",
            threads=self.threads(),
            backend=self._settings.backend,
            cache_dir=str(self._cache_dir),
            fallbacks=decision.fallbacks if decision else (),
        )

    def job(self, engine: str) -> PlacementOrder:
        """Where a job computes."""
        decision = self._for(registry.find(engine))
        cores = os.cpu_count() or 1
        slots = self._settings.cpu_jobs or max(1, cores // 2)
        return PlacementOrder(
            device=decision.device if decision else "cpu",
            precision=decision.precision if decision else "fp32",
            threads=max(1, (self._settings.threads or max(1, cores // 2)) // slots),
            backend=self._settings.backend,
        )

    def _for(self, spec: EngineSpec) -> "Decision | None":
        """The decision for an engine; None: it computes on the CPU whatever there is."""
        if spec.capabilities.devices <= {"cpu"}:
            return None
        if not self._ready.wait(PROBE_WAIT_S):
            raise MynaError(
                "busy", "Accelerators are still being looked for: try again in a few seconds.", retry_after_s=5.0
            )
        found = self._decision
        if found is None or found.device.split(":")[0] in spec.capabilities.devices:
            return found
        why = f"the engine {spec.name} can't use {found.device}"
        return dataclasses.replace(
            found,
            device="cpu",
            precision="auto" if self._settings.precision == "auto" else "fp32",
            reason=f"{why}.",
            card=None,
            fallbacks=(*found.fallbacks, f"computing on the CPU instead of {found.device}: {why}"),
            live_allowed=self._settings.device == "auto" or self._settings.allow_cpu_fallback,
        )
