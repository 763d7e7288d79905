"""Turns a stream of hops into another voice: listens, decides, and mixes grains with noise."""

from collections import deque

import numpy as np

from myna.dsp.filters import highpass, lowpass_taps, quarter_turn_taps
from myna.engines.formant.grains import GrainVoice
from myna.engines.formant.noise import NoiseVoice
from myna.engines.formant.pitch import LOOK, LOWEST_HZ, PitchTracker
from myna.engines.formant.presets import FORMANT_LIMIT, PITCH_LIMIT, ROBOT_RANGE_HZ, Preset
from myna.engines.formant.reader import Signal
from myna.engines.formant.sound import Sound

HOP_S = 0.005
DELAY_S = 0.035
SILENCE_S = 0.090  # of exact zeros, after which nothing sounds any more
_TRACKED_HZ = 12000.0  # about the rate at which periods are found
_RUMBLE_HZ = 60.0
# Cut out of its surroundings a pulse is a copy of one of the input's, wherever it is put: alone in a 50 ms frame, at
# the edges of creaky voice, it was the input's own waveform (correlation 0.93; as noise 0.85). All-pass sections over
# all voiced sound were tried instead: 0.89, and worse in DNSMOS.
_ALONE = 0.06  # of a pulse's energy: with less than this 10 to 25 ms before or after it, it is spoken as noise
_RAMP_S = 0.030  # a new pitch or formant is reached in this time
_SEARCHED = 1.25  # times the expected period, within which the next mark is found
_DISPERSED = 3.0  # semitones down from which on twins are as strong as grains: 0.25 points of DNSMOS there
_TURN_S = 0.002  # half the length of the filter for twins, which lag by more
_LOUDEST = 16.0  # +24 dBFS; what is above is no sound


def hop_frames(rate_hz: int) -> int:
    """Frames per hop: about 5 ms, a multiple of the decimation."""
    step = decimation(rate_hz)
    return step * max(1, round(rate_hz * HOP_S / step))


def decimation(rate_hz: int) -> int:
    """By how much the rate is lowered for finding periods."""
    return max(1, round(rate_hz / _TRACKED_HZ))


class Converter:
    """One voice at one rate, hop by hop; the hop handed back is that of `delay` frames before the newest end.

    Work per hop: one period search, at most one noise frame, and the halves of grains that begin to sound.
    """

    def __init__(self, rate_hz: int, preset: Preset, pitch: float, formant: float) -> None:
        """Make the voice; `pitch` and `formant` are the session's, in semitones, added to the preset's."""
        self.hop = hop_frames(rate_hz)
        self.delay = round(DELAY_S * rate_hz)
        self._rate = rate_hz
        self._preset = preset
        step = decimation(rate_hz)
        taps = 2 * round(0.00125 * rate_hz) + 1
        self._lowpass = lowpass_taps(taps, min(1300.0, 0.4 * rate_hz), rate_hz)
        self._gather = np.arange(step - 1, self.hop, step)[:, None] + np.arange(taps)
        self._rumble = highpass(2, _RUMBLE_HZ, rate_hz)
        self._tracker = PitchTracker(rate_hz / step)
        # A correlation of two windows, the later one ending now, is about a time between them.
        lag = (taps - 1) // 2 + step * self._tracker.window / 2 + 0.004 * rate_hz
        self._decided = round(lag) + (LOOK + 1) * self.hop
        length = 2 * self.delay + round(0.06 * rate_hz)
        length = -(-length // self.hop) * self.hop
        self._sound = Sound(length, step, (taps - 1) // 2, quarter_turn_taps(max(1, round(_TURN_S * rate_hz))))
        self._grains = GrainVoice(self._sound, rate_hz)
        airy = preset.style in ("whisper", "breathy")
        self._noise = NoiseVoice(rate_hz, self.hop, 4 if airy else 2, 200.0 if airy else 100.0, whispered=airy)
        self._silent_hops = -(-round(SILENCE_S * rate_hz) // self.hop)
        self._raw = np.zeros(length, np.float32)
        self._energies_kept = self.delay // self.hop + 9
        grain = _SEARCHED * 2 ** (FORMANT_LIMIT / 12) * rate_hz / LOWEST_HZ  # longest reach to either side
        self._voiced_out = np.zeros(self.hop + round(4 * grain))
        self._noise_out = np.zeros(self._noise.size + self.hop)
        self._pitch = self._pitch_goal = pitch
        self._formant = self._formant_goal = formant
        self.reset()

    @property
    def silent_frames(self) -> int:
        """Frames of exact zeros after which the output is exact zeros."""
        return (self._silent_hops + 1) * self.hop

    def set(self, pitch: float, formant: float) -> None:
        """Aim for new shifts, in semitones; reached within 30 ms."""
        self._pitch_goal, self._formant_goal = pitch, formant
        ramp_hops = max(1, round(_RAMP_S / HOP_S))
        self._pitch_step = abs(pitch - self._pitch) / ramp_hops
        self._formant_step = abs(formant - self._formant) / ramp_hops

    def reset(self) -> None:
        """Forget the sound; parameters stay, at their goals."""
        self._sound.clear()
        self._raw[:] = 0.0
        self._tracker.reset()
        self._grains.stop()
        self._rumble.reset()
        self._voiced_out[:] = 0.0
        self._noise_out[:] = 0.0
        self._energies = deque([0.0] * self._energies_kept, self._energies_kept)  # of the newest hops
        self._zeros = self._silent_hops
        self._pitch, self._formant = self._pitch_goal, self._formant_goal
        self._pitch_step = self._formant_step = 0.0
        self._last_period = 0.0
        self._before = 0.0  # the period decided one hop earlier
        self._points: deque[tuple[float, float, float]] = deque(maxlen=24)  # position, voiced, period

    def step(self, heard: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Signal:
        """Take one hop, shape (hop,), and return one, delayed."""
        if heard.any():
            self._zeros = 0
        else:
            if self._zeros < self._silent_hops:
                self._zeros += 1
                if self._zeros == self._silent_hops:
                    self.reset()  # time begins anew as well: what follows is as from a new voice, bit for bit
            if self._zeros == self._silent_hops:
                return np.zeros(self.hop)
        self._move_parameters()
        self._listen(heard)
        origin = self._sound.heard - self.delay
        end = origin + 2 * self.hop  # under the whole noise frame, where not every frame is spoken as noise anyway
        voiced = self._voicing(origin, end)
        if voiced.any():
            voiced *= self._in_company(origin, end)
        return self._mix(self._speak(origin), self._breathe(origin, voiced), voiced[: self.hop])

    def _move_parameters(self) -> None:
        self._pitch = _toward(self._pitch, self._pitch_goal, self._pitch_step)
        self._formant = _toward(self._formant, self._formant_goal, self._formant_step)
        pitch = self._preset.pitch + self._pitch
        formant = self._preset.formant + self._formant
        self._pitch_ratio = 2.0 ** (min(max(pitch, -PITCH_LIMIT), PITCH_LIMIT) / 12)
        self._formant_ratio = 2.0 ** (min(max(formant, -FORMANT_LIMIT), FORMANT_LIMIT) / 12)
        self._dispersed = 0.0 if self._preset.style == "robot" else min(max(-pitch / _DISPERSED, 0.0), 1.0)
        self._sound.turn(self._dispersed > 0.0 or (self._sound.turning and self._grains.active))  # twins may be waiting

    def _listen(self, heard: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        """Take the hop into memory and decide about the voicing some time back."""
        hop, step = self.hop, self._sound.decimation
        clipped = np.clip(heard, -_LOUDEST, _LOUDEST)
        self._raw[:-hop] = self._raw[hop:]
        self._raw[-hop:] = clipped
        full = self._rumble.process(clipped.astype(np.float64))
        self._energies.append(float(full @ full))
        taps = len(self._lowpass)
        context = np.concatenate((self._sound.full[-(taps - 1) :], full))
        self._sound.push(full, context[self._gather] @ self._lowpass)
        low = self._sound.low[-self._tracker.needed :]
        period = self._tracker.push(low) * step
        # A stretch ends with its last voiced hop but begins one hop late: its first pulse, a copy of one of the
        # input's wherever it is cut out, then comes under noise.
        before, self._before = self._before, period
        voiced = before > 0
        self._last_period = before or period or self._last_period
        if self._preset.style == "whisper":
            voiced = False
        position = float(self._sound.heard - self._decided)
        self._points.append((position, float(voiced), self._last_period))

    def _voicing(self, low: int, high: int) -> Signal:
        """How voiced each position of low..high is, 0…1; what is not decided yet is like the last decision."""
        points = self._points
        return np.interp(np.arange(low, high), [p[0] for p in points], [p[1] for p in points])

    def _period_at(self, position: float) -> float:
        """The input's period around a position, in frames."""
        found = self._points[0][2]
        for at, _, period in self._points:
            if at > position + self.hop / 2 and found > 0:
                break
            found = period
        return found if found > 0 else self._rate / 150.0

    def _voiced_stretch(self, position: float) -> float | None:
        """Where the next voiced stretch from a position on begins, if one is decided."""
        before = position
        for at, voiced, _ in self._points:
            if at > position and voiced > 0:
                return max(before, position)
            before = at
        return None

    def _speak(self, origin: int) -> Signal:
        """The voiced part of the hop at `origin`: renders every half grain that begins to sound in it."""
        out, hop, grains = self._voiced_out, self.hop, self._grains
        end = origin + hop
        while True:
            if not grains.active:
                start = self._voiced_stretch(origin)
                if start is None or start >= end:
                    break
                grains.start(start, self._period_at(start + hop))
            if self._voiced_stretch(origin - hop) is None:
                grains.stop()
                break
            shifts = (self._pitch_ratio, self._formant_ratio, self._note_interval(), self._dispersed)
            if not grains.render(out, origin, end, self._period_at, *shifts):
                break
        grains.follow(out, origin, end)
        spoken = out[:hop].copy()
        out[:-hop] = out[hop:]
        out[-hop:] = 0.0
        return spoken

    def _in_company(self, low: int, high: int) -> Signal:
        """1 where there is sound about as strong before and after a position, 0 at a pulse that is alone."""
        hop, energies = self.hop, [*self._energies, 0.0, 0.0]
        first_frame = self._sound.heard - len(self._energies) * hop
        first, last = (low - first_frame) // hop - 1, (high - first_frame) // hop + 1
        alone = []
        for k in range(first - 1, last + 2):
            weaker = min(max(energies[k - 5 : k - 1]), max(energies[k + 2 : k + 6]))
            alone.append(weaker < _ALONE * max(energies[k - 1 : k + 2]))
        company = [0.0 if any(alone[i : i + 3]) else 1.0 for i in range(len(alone) - 2)]
        return np.interp(np.arange(low, high), [first_frame + (k + 0.5) * hop for k in range(first, last + 1)], company)

    def _note_interval(self) -> float | None:
        """The period of the one note that a robot has; None for voices that follow the input's."""
        if self._preset.style != "robot":
            return None
        low, high = ROBOT_RANGE_HZ
        return self._rate / float(np.clip(self._preset.robot_hz * self._pitch_ratio, low, high))

    def _breathe(self, origin: int, voiced: Signal) -> Signal:
        """The unvoiced part of the hop at `origin`; a frame is spared where all under it is voiced."""
        out, hop, size = self._noise_out, self.hop, self._noise.size
        if self._preset.style == "breathy" or voiced.min() < 1.0:
            at = round(self._sound.full_index(origin))
            sound, key = self._sound.full[at : at + size], self._raw[at : at + size].tobytes()
            out[:size] += self._noise.frame(sound, self._formant_ratio, key)
        breathed = out[:hop].copy()
        out[:-hop] = out[hop:]
        out[-hop:] = 0.0
        return breathed

    def _mix(self, spoken: Signal, breathed: Signal, voiced: Signal) -> Signal:
        """Cross over at even power: the two parts have nothing in common."""
        turn = 0.5 * np.pi * voiced
        if self._preset.style == "breathy":
            return 0.7 * np.sin(turn) * spoken + breathed
        return np.sin(turn) * spoken + np.cos(turn) * breathed


def _toward(value: float, goal: float, step: float) -> float:
    return goal if abs(goal - value) <= step * 1.000001 else value + np.copysign(step, goal - value)
