"""The native audio core (audio_core.c): what the device callback runs, and its rings."""

from typing import Any

class Core:
    """One device stream's callback state with its two lock-free single-producer rings.

    The callback (`PaStreamCallback` ABI, address `callback`, state `userdata`) never waits and never calls
    Python. Every input and output frame of a stream has an absolute position, counted from 0 at the first
    callback; on a duplex stream both positions advance together, which makes the delay a constant of
    arithmetic: a frame captured at position p and written at position p + d comes out d frames later.

    input ring   Device channels in `in_map` (0-based) are averaged to mono. When the ring is full, new
                 frames are dropped (counted in `in_dropped`, one `in_full_events` per stretch) until the
                 reader has emptied it; positions go on, so that the reader sees the gap.
    output ring  Addressed by position. What the writer brings after its time has passed is skipped and counted
                 (`late_frames`). Where nothing was written the callback plays silence: it fades the last
                 value out within 64 frames and fades the next frames in over 64, by itself. Every such
                 stretch after the first write is one `dry_events`, its frames are `dry_frames`.
                 Played positions never come again: no old sound can be repeated.
    """

    def __init__(
        self,
        *,
        rate_hz: float,
        in_channels: int,
        out_channels: int,
        in_map: tuple[int, ...],
        out_map: tuple[int, ...],
        capacity_frames: int,
        paced: bool = True,
    ) -> None:
        """paced: callbacks come at the rate's own pace, so that `wait` may sleep as long as that takes; False for
        a core fed as fast as its reader asks. in_channels/out_channels 0: no such direction. out_map: device
        channels that get the mono signal; the rest stay silent. ValueError on a map outside the channels (at most
        64) or a capacity that is no power of two."""

    callback: int
    """Address of the C callback."""
    userdata: int
    """Address of this core's state, valid while the Core lives."""

    def call(self, inp: Any, out: Any, frames: int, now_ns: int = 0) -> int:
        """Run the very same callback once, for tests and clock-driven backends.

        inp: float32 buffer of frames × in_channels (interleaved) or None (captured as silence); out: writable
        likewise, None: played to nowhere. now_ns: what a hand-driven clock shows, for the stamp; 0: the system's.
        Returns the callback's result (0 = continue). TypeError on anything but float32, ValueError on a buffer
        that is too short. Must not run beside another callback of this core."""

    def wait(self, frames: int, timeout_ms: float) -> bool:
        """Wait without the interpreter lock until `frames` input frames are readable (or a gap must be
        taken). False on timeout."""

    def read(self, into: Any) -> tuple[int, int]:
        """Copy up to len(into) frames to a writable float32 buffer; returns (frames, position of the first).
        Stops at a gap; a later read goes on behind it with the later position."""

    def readable(self) -> int:
        """Input frames that can be read now (up to a gap)."""

    def wanted(self) -> int:
        """Frames the reader waits for right now (in `wait`), 0 if it does not wait: who feeds this core by hand
        knows by `wanted() > readable()` that the reader has done all it can."""

    def discard(self, frames: int) -> int:
        """Skip up to `frames` readable input frames; returns how many."""

    def write(self, position: int, frames: Any) -> int:
        """Place float32 mono frames at an absolute output position; returns how many were placed.

        position behind `written`: the part before `written` is not rewritten (skipped, not counted as late unless
        already played). Position ahead of `written`: the gap between plays as silence, faded at both ends.
        Frames beyond the ring's capacity are dropped and counted in `out_full_frames`; non-finite ones become 0
        and are counted. A frame that the callback overtakes in the very instant it is published shows in
        `dry_frames` only."""

    def rewind(self) -> int:
        """Forget everything written but not yet played (a swap, a pause: nothing stale may sound). The callback fades
        out by itself, and what follows is not dry until the next write. Returns the frames forgotten."""

    def silence(self, on: bool) -> None:
        """While on, the callback plays (faded) silence whatever was written; positions go on, nothing is dry.
        Dead-man switch for stop and mute-at-once."""

    def stamp(self) -> tuple[int, int, int]:
        """(CLOCK_MONOTONIC ns at its start, captured, played after it) of the latest callback, taken together.
        ns 0: none yet."""

    def stats(self) -> dict[str, int]:
        """Counters: captured, read (frames taken, by `discard` too), in_dropped, in_full_events, played, written,
        late_frames, dry_frames, dry_events, out_full_frames, callbacks, max_callback_ns, max_gap_ns (longest
        time between two callbacks), nonfinite_in (non-finite device samples, replaced by 0), nonfinite_out.
        captured = read + in_dropped + readable, at rest."""
