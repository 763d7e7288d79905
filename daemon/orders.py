"""A voice and its place as they cross to a worker, live or for files."""

from pathlib import Path

from msgspec import Struct, field

from myna.daemon.voices.values import Scalar, kept_values
from myna.engines.base import Placement, VoiceAsset


class VoiceOrder(Struct, frozen=True, kw_only=True):
    """A voice: names and paths, never code."""

    id: str
    engine: str
    files: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, object] = field(default_factory=dict)
    kept: dict[str, Scalar] = field(default_factory=dict)  # what of them holds unless a session or job sets another
    description: str = ""
    unchanged: bool = False

    @classmethod
    def of(cls, asset: VoiceAsset) -> "VoiceOrder":
        """The order for `asset`. MynaError("bad_request") where a value kept with it can't be."""
        return cls(
            id=asset.id,
            engine=asset.engine,
            files={name: str(path) for name, path in asset.files.items()},
            defaults=dict(asset.defaults),
            kept=kept_values(asset),
            description=asset.description,
            unchanged=asset.unchanged,
        )

    def asset(self) -> VoiceAsset:
        """The asset this order names."""
        return VoiceAsset(
            id=self.id,
            engine=self.engine,
            files={name: Path(path) for name, path in self.files.items()},
            defaults=self.defaults,
            description=self.description,
            unchanged=self.unchanged,
        )


class PlacementOrder(Struct, frozen=True, kw_only=True):
    """Where a voice computes."""

    device: str = "cpu"
    precision: str = "fp32"
    threads: int = 1
    backend: str = "auto"
    cache_dir: str | None = None
    fallbacks: tuple[str, ...] = ()

    def placement(self) -> Placement:
        """The placement this order names."""
        return Placement(
            device=self.device,
            precision=self.precision,
            threads=self.threads,
            backend=self.backend,
            cache_dir=Path(self.cache_dir) if self.cache_dir else None,
        )
