"""Plots of measurements, by matplotlib, which is imported only here."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from myna.control.contract import CheckReply, LatencyReply
from myna.control.errors import MynaError


def require() -> None:
    """MynaError `missing_asset` before any work is done, if plots can't be drawn here."""
    if find_spec("matplotlib") is None:
        raise MynaError("missing_asset", "Plots need matplotlib; run `pip install 'myna[monitor]'`.")


def latency(reply: LatencyReply, path: str) -> None:
    """Draw what came back of the bursts, and the parts of the delay."""
    figure, (above, below) = _figure(2)
    if reply.correlation and reply.correlation_step_ms:
        times = [number * reply.correlation_step_ms for number in range(len(reply.correlation))]
        above.plot(times, reply.correlation, linewidth=0.8)
    for delay in reply.delays_ms:
        above.axvline(delay, color="tab:orange", linewidth=0.8, alpha=0.6)
    measured = reply.latency.loopback_ms
    above.set_title(f"loopback: {'not measured' if measured is None else f'{measured:.1f} ms'} ({reply.reason})")
    above.set_xlabel("delay, ms")
    above.set_ylabel("correlation")
    left = 0.0
    for name in ("device_in_ms", "algorithmic_ms", "compute_ms", "prefill_ms", "device_out_ms"):
        part = getattr(reply.latency, name)
        if part is not None:
            below.barh(["estimated"], [part], left=left, label=f"{name.removesuffix('_ms')} {part:.1f}")
            left += part
    peers = reply.latency.peers_estimated_ms
    if peers is not None:
        below.barh(["usual formula"], [peers], color="lightgrey")
    if left:
        below.legend(fontsize="small")
    below.set_xlabel("ms")
    _save(figure, path)


def check(reply: CheckReply, path: str) -> None:
    """Draw compute time over block length, with the line of 70 % load."""
    figure, (axes,) = _figure(1)
    blocks = [row.block_ms for row in reply.rows]
    axes.plot(blocks, [row.median_ms for row in reply.rows], "o-", label="median")
    axes.plot(blocks, [row.p95_ms for row in reply.rows], "o-", label="p95")
    axes.plot(blocks, [0.7 * block for block in blocks], "--", color="grey", label="70 % of the block")
    if reply.smallest_ms is not None:
        axes.axvline(reply.smallest_ms, color="tab:green", linewidth=0.8, label="smallest that holds")
    axes.set_xlabel("block, ms")
    axes.set_ylabel("compute, ms")
    axes.set_title(reply.voice)
    axes.legend()
    _save(figure, path)


def _figure(rows: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # without pyplot: no window system is asked

    figure = Figure(figsize=(8, 3.5 * rows), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False)
    return figure, [row[0] for row in axes]


def _save(figure: Any, path: str) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise MynaError("failed", f"The plot {Path(path).name} can't be written: {error}.", path=path) from error
