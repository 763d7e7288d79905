"""A core of the right size for a stream."""

from myna.daemon._core import Core


def make_core(
    rate_hz: float,
    capacity_ms: float,
    *,
    in_channels: int = 0,
    out_channels: int = 0,
    in_map: tuple[int, ...] | None = None,
    out_map: tuple[int, ...] | None = None,
    paced: bool = True,
) -> Core:
    """A core whose rings hold at least `capacity_ms`; None as a map is all channels. ValueError as Core's."""
    wanted = max(1, round(rate_hz * capacity_ms / 1000))
    return Core(
        rate_hz=rate_hz,
        in_channels=in_channels,
        out_channels=out_channels,
        in_map=tuple(range(in_channels)) if in_map is None else in_map,
        out_map=tuple(range(out_channels)) if out_map is None else out_map,
        capacity_frames=1 << (wanted - 1).bit_length(),
        paced=paced,
    )
