"""Two clocks that run apart: how fast each runs, and how to follow."""

import math

LEAST_STEP_MS = 4.0  # a clock's step is told from jitter beyond this, or eight times what its stamps scatter by,
STEP_MS = 40.0  # and surely beyond this
SURE_MS = 60.0  # errors that are needed for it, all together
SCATTER_S = 1.0  # that the scatter is known by
ASTRAY_S = 2.0  # without a stamp near it, and the line is wrong however unlike the errors are
# How far a clock may be believed to be off: crystals are off by less than 200 ppm, and what seems to be more is at
# first the stamps' doing. PulseAudio's callbacks were seen to come later by 3 ms a second for the first 3 s of a
# stream, and then 8 ms early. It took 20 s to unlearn what that seemed to tell.
LIKELY_PPM, LIKELY_PPM_PER_S, MOST_PPM = 200.0, 50.0, 1500.0
UNLEARN = 3.0  # seconds of what is known that a second of a line that steep costs
LEAST_KNOWN_S = 0.3


class ClockModel:
    """From jittering (time, frame count) stamps to a smooth line between time and frames.

    A second-order delay-locked loop. It starts wide to lock within about two seconds and narrows to
    `bandwidth_hz`; a slope that is more than a clock can be off by is held there, and the loop widens again. Stamps
    that are off by far more than they usually scatter, and all by the same, are no jitter but a step (lost input,
    suspend, a restarted server): the line moves there at once and keeps its slope, which is a crystal's. Stamps that
    come faster than their frames, as callbacks do that make up for a stall without loss, say nothing of a step: they
    catch up by themselves. Times are ns of any monotonic clock; the arithmetic is float64 on differences, good for
    years.

    Source: F. Adriaensen, "Using a DLL to filter time", 2005.
    """

    _origin: int | None
    _time: float
    _frames: int
    _frame_ns: float
    _seen: tuple[int, int]  # the stamp before, taken or not
    _age_s: float  # since the first stamp
    _known_s: float  # that is known of the slope
    _placed_s: float  # since the line began, or stepped
    _scatter_ns: float  # what a stamp is usually off by
    _off_ns: list[float]  # the latest stamps' errors, as long as they look like a step

    def __init__(self, rate_hz: float, *, bandwidth_hz: float = 0.05) -> None:
        if not rate_hz > 0.0 or not bandwidth_hz > 0.0:
            raise ValueError("rate_hz and bandwidth_hz must be positive")
        self._nominal_ns = 1e9 / rate_hz
        self._bandwidth = bandwidth_hz
        self.steps = 0
        self.reset()

    @property
    def locked(self) -> bool:
        """Whether enough was seen for the line to be trusted."""
        return self._age_s >= 1.0

    @property
    def drift_ppm(self) -> float:
        """How much faster than nominal the clock runs; 0 before any stamp."""
        return 1e6 * (self._nominal_ns / self._frame_ns - 1.0)

    @property
    def rate_hz(self) -> float:
        """Frames per second of the stamps' clock."""
        return 1e9 / self._frame_ns

    def update(self, time_ns: int, frames: int) -> None:
        """Take one stamp: at `time_ns` the count stood at `frames`; one without new frames is ignored."""
        if self._origin is None:
            self._place(time_ns, frames)
            return
        fresh = frames - self._frames
        if fresh == 0:
            return
        paced = time_ns - self._seen[0] > 0.5 * (frames - self._seen[1]) * self._frame_ns
        self._seen = time_ns, frames
        expected = self._time + fresh * self._frame_ns
        error = (time_ns - self._origin) - expected
        if fresh < 0 or abs(error) > self._far_ns():
            if fresh < 0:  # the count began anew
                self.steps += 1
                self._place(time_ns, frames)
            elif self._is_step(error, paced):
                self.steps += 1
                self._place(time_ns + round(sum(self._off_ns) / len(self._off_ns) - error), frames)
            elif paced and fresh * self._nominal_ns > 1e9 * ASTRAY_S:
                self.steps += 1
                self._scatter_ns = 1e6 * STEP_MS / 8.0  # jitter has grown as well: all stamps count at first
                self._place(time_ns, frames)
            return
        self._off_ns.clear()
        self._follow(error, expected, fresh)
        self._frames = frames
        if self._time > 1e15:  # a fortnight: keep the differences small
            whole = int(self._time)
            self._origin += whole
            self._time -= whole

    def frames_at(self, time_ns: int) -> float:
        """The frame count at a time, on the line. ValueError before any stamp."""
        if self._origin is None:
            raise ValueError("no stamp yet")
        return self._frames + ((time_ns - self._origin) - self._time) / self._frame_ns

    def time_ns_at(self, frames: float) -> float:
        """The time of a frame count, on the line. ValueError before any stamp."""
        if self._origin is None:
            raise ValueError("no stamp yet")
        return self._origin + (self._time + (frames - self._frames) * self._frame_ns)

    def reset(self) -> None:
        """Forget all stamps."""
        self._origin = None
        self._frame_ns = self._nominal_ns
        self._age_s = self._known_s = self._scatter_ns = 0.0
        self._place(0, 0)
        self._origin = None

    def _place(self, time_ns: int, frames: int) -> None:
        """Lay the line through a stamp; its slope stays."""
        self._origin, self._time, self._frames = time_ns, 0.0, frames
        self._seen = time_ns, frames
        self._placed_s = 1e-3
        self._off_ns = []

    def _follow(self, error: float, expected: float, fresh: int) -> None:
        """Draw the line towards a stamp that is off by `error` ns."""
        seconds = fresh * self._nominal_ns * 1e-9
        self._age_s += seconds
        self._known_s += seconds
        self._placed_s += seconds
        self._scatter_ns += min(seconds / min(self._age_s, SCATTER_S), 1.0) * (abs(error) - self._scatter_ns)
        placing, sloping = self._omega(self._placed_s, seconds), self._omega(self._known_s, seconds)
        self._time = expected + math.sqrt(2.0) * placing * error
        self._frame_ns += sloping * sloping * error / fresh
        off, most = self._frame_ns - self._nominal_ns, self._steepest(seconds) * self._nominal_ns
        if abs(off) > most:
            self._frame_ns = self._nominal_ns + math.copysign(most, off)
            self._known_s = max(self._known_s - (1.0 + UNLEARN) * seconds, LEAST_KNOWN_S)
            self._placed_s = min(self._placed_s, self._known_s)

    def _steepest(self, seconds: float) -> float:
        """What the slope may be off by: what a clock can be, and three times what jitter makes of it.

        A line through stamps that scatter by s over t seconds, one in each d, is off by 2.3 s √d / t^1.5 (simulated).
        """
        likely = 1e-6 * min(LIKELY_PPM + LIKELY_PPM_PER_S * self._age_s, MOST_PPM)
        jitter = 7.0 * 1e-9 * self._scatter_ns * math.sqrt(seconds) / math.pow(self._known_s, 1.5)
        return min(likely + jitter, 0.005)

    def _omega(self, age_s: float, seconds: float) -> float:
        """Wide at first: a loop that has run for t seconds can't know better than a bandwidth of about 1/t."""
        return min(2.0 * math.pi * max(self._bandwidth, 0.35 / age_s) * seconds, 0.7)

    def _far_ns(self) -> float:
        """The error beyond which a stamp may tell of a step."""
        if self._age_s < 0.3:
            return 1e6 * STEP_MS
        return min(max(8.0 * self._scatter_ns, 1e6 * LEAST_STEP_MS), 1e6 * STEP_MS)

    def _is_step(self, error: float, paced: bool) -> bool:
        """Whether this far stamp and those just before it tell of a step: at least three, more the smaller it is."""
        if not paced:
            return False
        off = [*self._off_ns, error]
        alike = max(off) - min(off) < 0.5 * min(map(abs, off))
        self._off_ns = off if alike else [error]
        return len(self._off_ns) >= 3 and sum(map(abs, self._off_ns)) > 1e6 * SURE_MS


class DriftController:
    """Steers a resampler so that a ring's level stays at its target.

    PI on the level's error in ms, low-passed, clamped to ±`most_ppm`, its slope to ±`slew_ppm_per_s`; the
    integrator stands still while the output is clamped or slewing (anti-windup). 1000 ppm are 1.7 cents, so
    pitch never moves by 2.

    The level answers to u ppm by u / 1000 ms a second, so that Kp = 2 ω 1000 and Ki = ω² 1000 make the loop
    critically damped at ω. With ω = 0.25 / s a step of 600 ppm moves the level by 0.6 / (e ω) = 0.9 ms.
    """

    _integral: float
    _ppm: float
    _error_ms: float | None

    def __init__(
        self,
        rate_hz: float,
        target_frames: float,
        *,
        omega_per_s: float = 0.25,
        most_ppm: float = 1000.0,
        slew_ppm_per_s: float = 400.0,
        smooth_s: float = 0.4,
    ) -> None:
        if not rate_hz > 0.0 or not 0.0 < most_ppm <= 1000.0:
            raise ValueError("rate_hz must be positive, most_ppm within 0..1000")
        self._frames_per_ms = rate_hz / 1000.0
        self.target_frames = target_frames
        self._kp, self._ki = 2000.0 * omega_per_s, 1000.0 * omega_per_s * omega_per_s
        self._most, self._slew, self._smooth_s = most_ppm, slew_ppm_per_s, smooth_s
        self.reset()

    @property
    def ppm(self) -> float:
        """What was decided last."""
        return self._ppm

    @property
    def clamped(self) -> bool:
        """Whether the clocks are further apart, or the level further off, than can be followed at once."""
        return abs(self._ppm) >= self._most

    def update(self, level_frames: float, dt_s: float) -> float:
        """Take the ring's level and the time since the last one; returns a deviation in ppm.

        The resampler that fills the ring should make so many more frames than nominal; negative while it is too full.
        """
        if dt_s <= 0.0 or not math.isfinite(level_frames):
            return self._ppm
        error_ms = (self.target_frames - level_frames) / self._frames_per_ms
        if self._error_ms is None:
            self._error_ms = error_ms
        self._error_ms += (1.0 - math.exp(-dt_s / self._smooth_s)) * (error_ms - self._error_ms)
        integral = self._integral + self._ki * self._error_ms * dt_s
        wanted = self._kp * self._error_ms + integral
        step = self._slew * dt_s
        ppm = min(max(wanted, self._ppm - step, -self._most), self._ppm + step, self._most)
        if ppm == wanted or (wanted - ppm) * self._error_ms < 0.0:
            self._integral = min(max(integral, -self._most), self._most)
        self._ppm = ppm
        return ppm

    def reset(self, *, keep_drift: bool = False) -> None:
        """Start anew; `keep_drift` keeps what was learned of the clocks (after a jump of the level, say)."""
        self._integral = self._integral if keep_drift else 0.0
        self._ppm = self._integral
        self._error_ms = None
