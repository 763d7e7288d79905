"""What a session tells of itself: figures that were measured, null where none was."""

import msgspec

from myna.control.contract import LatencyParts, LatencyReply, LiveState, SessionStatus
from myna.daemon.live.delay import advice, peers_estimate_ms
from myna.daemon.live.messages import SessionConfig
from myna.daemon.live.probe import ProbeResult
from myna.daemon.live.running import Running


def told(
    name: str,
    state: LiveState,
    reason: str | None,
    config: SessionConfig | None,
    running: Running | None,
    *,
    recording: str | None,
    loopback: tuple[float, float] | None,
    now_s: float,
) -> SessionStatus:
    """The status of a session. `loopback`: a measured delay in ms, and when (Unix seconds)."""
    status = SessionStatus(session=name, state=state, stop_reason=reason, recording=recording)
    if config is not None:
        status = msgspec.structs.replace(
            status,
            voice=config.voice.id,
            voice_unchanged=config.voice.unchanged,
            engine=config.voice.engine,
            bypass=config.bypass,
            muted=config.muted,
            settings=config.in_force,
            revision=config.revision,
            input=config.devices.input,
            output=config.devices.output,
            fallbacks=config.placement.fallbacks,
        )
    return status if running is None else _with_running(status, running, loopback, now_s)


def _with_running(
    status: SessionStatus, running: Running, loopback: tuple[float, float] | None, now_s: float
) -> SessionStatus:
    facts, pipeline, counters, stream = running.facts, running.pipeline, running.loop.counters, running.stream
    voice = pipeline.newest_voice.facts
    p95 = running.p95_ms
    load = p95 / running.block_ms if p95 is not None else None
    input_db, _ = pipeline.input_meter.take()
    output_db, _ = pipeline.output_meter.take()
    lost = stream.source.stats()["in_dropped"] if stream.source is not None else 0
    priority = running.worker.priority if running.worker is not None else None
    return msgspec.structs.replace(
        status,
        device=voice.device,
        precision=voice.precision,
        backend=voice.backend,
        model_bytes=voice.model_bytes,
        fallbacks=(*status.fallbacks, *voice.fallbacks),
        input=facts.input,
        output=facts.output,
        monitor=running.monitor.name if running.monitor is not None else None,
        host_api=facts.host_api,
        rate_hz=running.rate_hz,
        period_ms=running.period_ms,
        duplex=facts.duplex,
        block_ms=running.block_ms,
        block_auto=running.length is not None,
        load=load,
        advice=_advice(running, load, p95),
        latency=latency_parts(running, loopback),
        blocks=counters.blocks,
        xruns=stream.sink.stats()["dry_events"] if stream.sink is not None else 0,
        late_frames=counters.late_frames,
        dropped_frames=counters.dropped_frames + lost,
        nonfinite_blocks=pipeline.nonfinite_blocks,
        faults=counters.faults,
        drift_ppm=running.outlet.drift_ppm,
        realtime=f"loop: {priority}; device: {stream.facts.realtime}",
        input_db=input_db,
        output_db=output_db,
        seconds=now_s - running.started_s,
    )


def _advice(running: Running, load: float | None, p95_ms: float | None) -> str | None:
    counters = running.loop.counters
    if counters.faulting_since_s is not None:
        fault = counters.last_fault
        return f"The voice fails ({type(fault).__name__}: {fault}): choose another, or see the log."
    return advice(load, running.block_ms, p95_ms)


def latency_parts(running: Running, loopback: tuple[float, float] | None) -> LatencyParts:
    """The delay and what it is made of."""
    facts = running.facts
    held_ms = 1e3 * running.outlet.delay_frames / running.rate_hz
    device_in, device_out = facts.device_in_ms, facts.device_out_ms
    estimated = peers = None
    if device_in is not None and device_out is not None:
        estimated = held_ms + running.stages_ms + device_in + device_out
        crossfade_ms = running.applied.in_force.crossfade_ms
        peers = peers_estimate_ms(running.block_ms, crossfade_ms, device_in, device_out)
    return LatencyParts(
        compute_ms=running.times.percentile(99),
        algorithmic_ms=running.block_ms + running.stages_ms,
        device_in_ms=device_in,
        device_out_ms=device_out,
        prefill_ms=held_ms - running.block_ms,
        estimated_ms=estimated,
        loopback_ms=loopback[0] if loopback else None,
        peers_estimated_ms=peers,
        measured_at=loopback[1] if loopback else None,
    )


def latency_told(running: Running, loopback: tuple[float, float] | None, found: ProbeResult | None) -> LatencyReply:
    """What `live.latency` answers; `found` is None where the measurement was broken off."""
    latency = latency_parts(running, loopback)
    if found is None:
        return LatencyReply(latency=latency, reason="not_measured")
    return LatencyReply(
        latency=latency,
        reason=found.reason,
        delays_ms=found.delays_ms,
        peak_over_floor_db=found.peak_over_floor_db,
        correlation=found.correlation,
        correlation_step_ms=found.correlation_step_ms,
    )
