"""Sound files: every format, every kind of damage, and nothing half-written."""

import errno
import io
import os
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from myna.daemon import media
from myna.daemon.media import (
    MediaError,
    Writer,
    format_of,
    open_reader,
    sweep_parts,
    target_path,
    writable_rate_hz,
)
from myna.daemon.media.encoders import SteadyOgg, WavEncoder
from myna.daemon.media.faults import Guarded
from myna.daemon.media.reading import AvReader, SoundfileReader

RATE_HZ = 48_000


def tone(frames: int, rate_hz: int = RATE_HZ, level: float = 0.5) -> media.Block:
    return (level * np.sin(2 * np.pi * 440 * np.arange(frames) / rate_hz)).astype(np.float32)


def written(path: Path, audio: media.Block, format: Any, rate_hz: int = RATE_HZ, **options: Any) -> Path:  # noqa: A002
    with Writer(path, rate_hz, format, **options) as writer:
        writer.write(audio)
        published = writer.commit()
    assert published is not None
    return published


def whole(path: Path, block: int = 10_000) -> media.Block:
    with open_reader(path) as reader:
        parts = [reader.read(block)]
        while len(parts[-1]):
            parts.append(reader.read(block))
    return np.concatenate(parts)


def code_of(path: Path) -> str:
    with pytest.raises(MediaError) as caught:
        whole(path)
    assert str(caught.value)
    return caught.value.code


def encoded(path: Path, audio: media.Block, container: str, codec: str, *, picture: bool = False, **tags: str) -> Path:
    """A file by FFmpeg's libraries, with a picture track before the sound where asked."""
    with av.open(str(path), "w", format=container) as out:
        out.metadata.update(tags)
        if picture:
            video = out.add_stream("mpeg4", rate=25)
            video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        stream = out.add_stream(codec, rate=RATE_HZ, layout="stereo")
        if picture:
            frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            frame.pts, frame.time_base = 0, Fraction(1, 25)
            out.mux(video.encode(frame))
        size = stream.codec_context.frame_size or 1024
        for start in range(0, len(audio), size):
            piece = np.stack([audio[start : start + size]] * 2)
            frame = av.AudioFrame.from_ndarray(piece.astype(np.float32), format="fltp", layout="stereo")
            frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, start, Fraction(1, RATE_HZ)
            out.mux(stream.encode(frame))
        for flushed in ([video] if picture else []) + [stream]:
            out.mux(flushed.encode(None))
    return path


# --- reading --------------------------------------------------------------------------------------------

WIDTHS = {"PCM_U8": 2**-7, "PCM_16": 2**-15, "PCM_24": 2**-22, "PCM_32": 2**-23, "FLOAT": 0.0, "DOUBLE": 0.0}


@pytest.mark.parametrize("subtype", WIDTHS)
@pytest.mark.parametrize("container", ["WAV", "RF64"])
def test_wav_of_every_width(tmp_path: Path, subtype: str, container: str) -> None:
    audio = tone(5000)
    soundfile.write(tmp_path / "a.wav", audio, RATE_HZ, subtype=subtype, format=container)
    with open_reader(tmp_path / "a.wav") as reader:
        assert (reader.rate_hz, reader.frames, reader.channels) == (RATE_HZ, 5000, 1)
        assert reader.duration_s == pytest.approx(5000 / RATE_HZ)
        got = reader.read(6000)
        assert reader.problems == []
    assert got.dtype == np.float32
    assert np.abs(got - audio).max() <= WIDTHS[subtype]


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3", "aiff", "caf", "w64", "au"])
def test_other_formats_of_libsndfile(tmp_path: Path, suffix: str) -> None:
    audio = tone(20_000)
    soundfile.write(tmp_path / f"a.{suffix}", audio, RATE_HZ)
    got = whole(tmp_path / f"a.{suffix}")
    assert len(got) == len(audio)
    assert np.abs(got - audio)[2000:-2000].max() < (0.05 if suffix in ("ogg", "mp3") else 1e-4)


@pytest.mark.parametrize(
    ("container", "suffix", "codec", "picture"),
    [("mp4", "m4a", "aac", False), ("webm", "webm", "libopus", False), ("mp4", "mp4", "aac", True),
     ("matroska", "mkv", "flac", False), ("adts", "aac", "aac", False)],
)  # fmt: skip
def test_what_only_ffmpeg_decodes(tmp_path: Path, container: str, suffix: str, codec: str, picture: bool) -> None:
    audio = tone(RATE_HZ)
    if codec == "flac":
        with av.open(str(tmp_path / "a.mkv"), "w", format=container) as out:
            stream = out.add_stream("flac", rate=RATE_HZ, layout="mono")
            frame = av.AudioFrame.from_ndarray((audio * 32767).astype(np.int16)[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = RATE_HZ, 0
            for packet in [*stream.encode(frame), *stream.encode(None)]:
                out.mux(packet)
        path = tmp_path / "a.mkv"
    else:
        path = encoded(tmp_path / f"a.{suffix}", audio, container, codec, picture=picture, title="Ein Lied")
    with open_reader(path) as reader:
        assert reader.rate_hz == RATE_HZ
        assert reader.frames is None
        assert suffix == "aac" or reader.duration_s == pytest.approx(1.0, abs=0.1)
        got = reader.read(2 * RATE_HZ)
        assert reader.tags.get("title") == (None if suffix in ("mkv", "aac") else "Ein Lied")
        assert reader.problems == []
    assert abs(len(got) - RATE_HZ) <= 3000
    middle = got[RATE_HZ // 4 : RATE_HZ // 2]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert np.argmax(spectrum) * RATE_HZ / len(middle) == pytest.approx(440, abs=5)
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.05)


def test_channels_are_averaged_and_blocks_do_not_matter(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    channels = rng.uniform(-0.5, 0.5, (7001, 6))
    soundfile.write(tmp_path / "six.wav", channels, 44_100, subtype="FLOAT")
    got = whole(tmp_path / "six.wav", 997)
    np.testing.assert_array_equal(got, channels.astype(np.float32).mean(axis=1, dtype=np.float64).astype(np.float32))
    for block in (1, 7001, 5000):
        np.testing.assert_array_equal(whole(tmp_path / "six.wav", block), got)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3", "m4a"])
@pytest.mark.parametrize("at", [0, 1, 12_345])
def test_skipping_gives_the_very_bytes_of_reading(tmp_path: Path, suffix: str, at: int) -> None:
    audio = (np.random.default_rng(2).standard_normal(30_000) * 0.1).astype(np.float32)
    path = tmp_path / f"a.{suffix}"
    if suffix == "m4a":
        encoded(path, audio, "mp4", "aac")
    else:
        written(path, audio, suffix)
    full = whole(path)
    with open_reader(path) as reader:
        assert reader.skip(at) == at
        np.testing.assert_array_equal(reader.read(len(full)), full[at:])
        assert reader.skip(10) == 0


@pytest.mark.parametrize("where", ["wav", "mkv"])
def test_nan_and_infinity_become_zero_and_are_counted(tmp_path: Path, where: str) -> None:
    audio = tone(4800)
    audio[[5, 100, 4000]] = np.nan, np.inf, -np.inf
    path = tmp_path / f"a.{where}"
    if where == "wav":
        soundfile.write(path, audio, RATE_HZ, subtype="FLOAT")
    else:
        with av.open(str(path), "w", format="matroska") as out:
            stream = out.add_stream("pcm_f32le", rate=RATE_HZ, layout="mono")
            frame = av.AudioFrame.from_ndarray(audio[None], format="flt", layout="mono")
            frame.sample_rate, frame.pts = RATE_HZ, 0
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    with open_reader(path) as reader:
        got = reader.read(10_000)
        assert reader.nonfinite_samples == 3
    assert np.isfinite(got).all()
    assert got[[5, 100, 4000]].tolist() == [0, 0, 0]


def test_one_sample_is_enough(tmp_path: Path) -> None:
    written(tmp_path / "one.wav", np.full(1, 0.25, np.float32), "wav")
    assert whole(tmp_path / "one.wav").tolist() == [0.25]


def test_empty_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "zero.wav").touch()
    soundfile.write(tmp_path / "no_frames.wav", np.zeros(0, np.float32), RATE_HZ)
    assert code_of(tmp_path / "zero.wav") == "empty"
    assert code_of(tmp_path / "no_frames.wav") == "empty"


@pytest.mark.parametrize("keep", [0.9, 0.5, 0.1])
def test_a_truncated_wav_gives_what_it_holds_and_says_so(tmp_path: Path, keep: float) -> None:
    path = written(tmp_path / "a.wav", tone(20_000), "wav")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with open_reader(path) as reader:
        got = reader.read(30_000)
        assert len(got) == pytest.approx(20_000 * keep, abs=100)
        assert any(p.startswith("truncated") for p in reader.problems)


@pytest.mark.parametrize("suffix", ["flac", "m4a", "mkv"])
def test_truncated_compressed_files(tmp_path: Path, suffix: str) -> None:
    audio = (np.random.default_rng(3).standard_normal(100_000) * 0.1).astype(np.float32)
    path = tmp_path / f"a.{suffix}"
    if suffix == "flac":
        written(path, audio, "flac")
    else:
        encoded(path, audio, {"m4a": "mp4", "mkv": "matroska"}[suffix], "aac")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    if suffix == "m4a":  # its table of contents stands at its end
        assert code_of(path) == "corrupt"
        return
    with open_reader(path) as reader:
        got = reader.read(200_000)
        assert 10_000 < len(got) < 90_000
        if suffix == "flac":
            assert reader.problems


def test_damage_in_the_middle_keeps_the_rest(tmp_path: Path) -> None:
    audio = (np.random.default_rng(3).standard_normal(100_000) * 0.1).astype(np.float32)
    path = encoded(tmp_path / "a.m4a", audio, "mp4", "aac")
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    data[start + 5000 : start + 7000] = os.urandom(2000)
    path.write_bytes(data)
    assert len(whole(path)) > 50_000


NOT_SOUND = {
    "text.wav": b"RIFF is only a word here\n" * 10,
    "notes.txt": b"dear diary\n" * 100,
    "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(200),
    "zeros.mp3": bytes(5000),
    "page.html": b"<html><audio src='x'></audio></html>",
    "list.m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
    "list.ffconcat": b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    "play.sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 9 RTP/AVP 0\n",
    "header_only.wav": b"RIFF\x24\x00\x00\x00WAVEfmt ",
    "flac_only.flac": b"fLaC",
    "ogg_only.ogg": b"OggS" + bytes(100),
}


@pytest.mark.parametrize("name", NOT_SOUND)
def test_what_is_no_sound_fails_by_name_and_opens_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(NOT_SOUND[name])
    assert code_of(path) == ("corrupt" if path.suffix in (".wav", ".flac", ".ogg") else "not_audio")


@pytest.mark.parametrize("seed", range(12))
def test_noise_never_does_more_than_fail(tmp_path: Path, seed: int) -> None:
    """Random bytes behind real beginnings: a typed error or finite sound, nothing else."""
    rng = np.random.default_rng(seed)
    beginnings = [
        b"", b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0", b"fLaC\0\0\0\x22", b"OggS\0\x02", b"ID3\x03", b"RF64",
        b"\0\0\0\x20ftypM4A ", b"\x1aE\xdf\xa3", b"\xff\xfb\x90\x64", b"FORM\0\0\1\0AIFF",
    ]  # fmt: skip
    codes = set()
    for beginning in beginnings:
        path = tmp_path / "noise.bin"
        path.write_bytes(beginning + rng.bytes(3000))
        try:
            with open_reader(path) as reader:
                assert np.isfinite(reader.read(1 << 20)).all()
        except MediaError as error:
            codes.add(error.code)
    assert codes <= {"corrupt", "not_audio", "unsupported", "empty", "no_audio"}


def test_a_video_without_sound(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "mute.mp4"), "w") as out:
        video = out.add_stream("mpeg4", rate=25)
        video.width, video.height, video.pix_fmt = 32, 32, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        frame.pts, frame.time_base = 0, Fraction(1, 25)
        out.mux(video.encode(frame))
        out.mux(video.encode(None))
    assert code_of(tmp_path / "mute.mp4") == "no_audio"


def wav_header(rate_hz: int, channels: int, data_bytes: int, declared: int) -> bytes:
    shape = struct.pack("<HHIIHH", 1, channels, rate_hz, (rate_hz * channels * 2) & 0xFFFFFFFF, channels * 2, 16)
    return (
        b"RIFF" + struct.pack("<I", 36 + declared) + b"WAVE"
        + b"fmt " + struct.pack("<I", 16) + shape + b"data" + struct.pack("<I", declared) + bytes(data_bytes)
    )  # fmt: skip


@pytest.mark.parametrize(("rate_hz", "channels"), [(1, 1), (999, 2), (4_000_000, 1), (48_000, 65), (48_000, 1000)])
def test_absurd_rates_and_channels(tmp_path: Path, rate_hz: int, channels: int) -> None:
    path = tmp_path / "absurd.wav"
    path.write_bytes(wav_header(rate_hz, channels, channels * 200, channels * 200))
    assert code_of(path) == "unsupported"


def test_absurd_length(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    path.write_bytes(wav_header(1000, 1, 0, 0xFFFFFFFF - 100))
    with path.open("r+b") as file:
        file.truncate(44 + 0xFFFFFFFF - 101)  # sparse: no room taken
    assert code_of(path) == "unsupported"


def test_names_of_any_kind(tmp_path: Path) -> None:
    audio = tone(100)
    names = [
        "it's \"quoted\".wav", "two\nlines.wav", "-rf.wav", "🎤 voix.wav", "x" * 251 + ".wav", " .wav",
        "%s {}.wav", "a.b.c", "日本語.flac",
    ]  # fmt: skip
    if sys.platform == "linux":
        names.append(os.fsdecode(b"latin1-\xe9\xff.wav"))
    for name in names:
        path = tmp_path / name
        assert written(path, audio, format_of(path)) == path
        assert len(whole(path)) == 100
    assert len(os.listdir(tmp_path)) == len(names)
    with pytest.raises(MediaError) as caught:
        open_reader(tmp_path / "no\nsuch\x1b[31m.wav")
    assert caught.value.code == "vanished"
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    with pytest.raises(MediaError):
        open_reader("a\0b.wav")


def test_what_is_not_a_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    (tmp_path / "loop.wav").symlink_to(tmp_path / "loop.wav")
    assert code_of(tmp_path) == "not_a_file"
    assert code_of(tmp_path / "pipe.wav") == "not_a_file"
    assert code_of(tmp_path / "loop.wav") == "not_a_file"
    assert code_of(Path("/dev/null")) == "not_a_file"
    assert code_of(tmp_path / "nowhere" / "a.wav") == "vanished"


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.wav", tone(10), "wav")

    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "open", denied)  # chmod does not stop root
    with pytest.raises(MediaError) as caught:
        open_reader(path)
    assert caught.value.code == "unreadable"


class FailingDisk(io.BytesIO):
    """A file whose reads fail once `after` bytes were given."""

    def __init__(self, data: bytes, number: int) -> None:
        super().__init__(data)
        self.number = number
        self.failing = False

    def readinto(self, buffer: Any) -> int:
        if self.failing:
            raise OSError(self.number, os.strerror(self.number))
        return super().readinto(buffer)


@pytest.mark.parametrize(("number", "code"), [(errno.EIO, "unreadable"), (errno.ESTALE, "vanished")])
@pytest.mark.parametrize("kind", ["wav", "m4a"])
def test_a_disk_that_fails_or_goes_away_midway(tmp_path: Path, number: int, code: str, kind: str) -> None:
    audio = (np.random.default_rng(0).standard_normal(200_000) * 0.1).astype(np.float32)
    path = tmp_path / f"a.{kind}"
    if kind == "wav":
        written(path, audio, "wav")
    else:
        encoded(path, audio, "mp4", "aac")
    disk = FailingDisk(path.read_bytes(), number)
    reader = SoundfileReader(path, disk) if kind == "wav" else AvReader(path, disk)
    with reader:
        assert len(reader.read(1000)) == 1000
        disk.failing = True
        with pytest.raises(MediaError) as caught:
            reader.skip(200_000) if kind == "m4a" else reader.read(200_000)
    assert caught.value.code == code


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.wav", tone(500_000), "wav")
    with open_reader(path) as reader:
        assert len(reader.read(1000)) == 1000
        os.truncate(path, 300_000)
        got = len(reader.read(1_000_000))
        assert 0 < got < 499_000
        assert reader.problems


# --- writing --------------------------------------------------------------------------------------------

TAGS = {"title": 'Tïtel "1"', "artist": "Me", "album": "A", "date": "2024", "genre": "Pop", "comment": "x=y"}


@pytest.mark.parametrize("format", media.FORMATS)
def test_tags_are_kept_and_bytes_are_equal(tmp_path: Path, format: media.Format) -> None:  # noqa: A002
    audio = (np.random.default_rng(4).standard_normal(50_000) * 0.1).astype(np.float32)
    a = written(tmp_path / "a", audio, format, tags=TAGS)
    with Writer(tmp_path / "b", RATE_HZ, format, {**TAGS, "unheard_of": "?"}) as writer:
        for start in range(0, len(audio), 16_384):
            writer.write(audio[start : start + 16_384])
        writer.write(np.zeros(0, np.float32))
        assert writer.frames == len(audio)
        b = writer.commit()
    assert b is not None
    assert a.read_bytes() == b.read_bytes()
    with open_reader(a) as reader:
        assert reader.tags == TAGS
        assert len(reader.read(60_000)) == len(audio)


def test_ogg_pages_have_one_serial_and_right_checksums(tmp_path: Path) -> None:
    """Every page is checked bit by bit, against a slow checksum written straight from RFC 3533."""
    data = written(tmp_path / "a.ogg", tone(30_000), "ogg").read_bytes()
    at = pages = 0
    while at < len(data):
        assert data[at : at + 4] == b"OggS"
        segments = data[at + 26]
        length = 27 + segments + sum(data[at + 27 : at + 27 + segments])
        page = bytearray(data[at : at + length])
        assert struct.unpack_from("<I", page, 14) == (SteadyOgg.SERIAL,)
        told = struct.unpack_from("<I", page, 22)[0]
        page[22:26] = bytes(4)
        crc = 0
        for byte in page:
            crc ^= byte << 24
            for _ in range(8):
                crc = ((crc << 1) ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
        assert crc == told
        at += length
        pages += 1
    assert pages >= 3


@pytest.mark.parametrize(("subtype", "width"), [("pcm16", 2), ("pcm24", 3), ("float", 4)])
@pytest.mark.parametrize("frames", [0, 1, 999])
def test_wav_becomes_rf64_when_sizes_no_longer_fit(
    tmp_path: Path, subtype: media.Subtype, width: int, frames: int
) -> None:
    audio = tone(frames)
    for limit, magic in ((0xFFFFFFFF, b"RIFF"), (50, b"RF64")):
        path = tmp_path / "a.wav"
        with path.open("w+b") as raw:
            encoder = WavEncoder(Guarded(raw), RATE_HZ, subtype, {"title": "odd"}, limit)
            encoder.write(audio)
            encoder.finish()
        assert path.read_bytes()[:4] == magic
        info = soundfile.info(str(path))
        assert (info.frames, info.samplerate, info.channels) == (frames, RATE_HZ, 1)
        if frames:
            assert np.abs(whole(path) - audio).max() <= 2.0 ** (1 - 8 * min(width, 3))


def test_full_scale_is_held_and_never_wraps(tmp_path: Path) -> None:
    loud = np.array([1.0, -1.0, 1.5, -1.5, 1e30, 0.999999999], np.float32)
    for format_, subtype in (("wav", "pcm16"), ("wav", "pcm24"), ("flac", "pcm24")):
        with Writer(tmp_path / "loud", RATE_HZ, format_, subtype=subtype) as writer:  # type: ignore[arg-type]
            writer.write(loud)
            assert writer.clipped_samples == 3
            writer.commit()
        got = whole(tmp_path / "loud")
        assert got.tolist() == pytest.approx([1, -1, 1, -1, 1, 1], abs=1e-4)
    with Writer(tmp_path / "kept", RATE_HZ, "wav", subtype="float") as writer:
        writer.write(loud)
        assert writer.clipped_samples == 0
        writer.commit()
    np.testing.assert_array_equal(whole(tmp_path / "kept"), loud)


@pytest.mark.parametrize("format", media.FORMATS)
def test_nan_is_never_written(tmp_path: Path, format: media.Format) -> None:  # noqa: A002
    bad = np.array([np.nan, np.inf, -np.inf, 0.5] * 500, np.float32)
    with Writer(tmp_path / "a", RATE_HZ, format, subtype="float") as writer:
        writer.write(bad)
        assert writer.nonfinite_samples == 1500
        writer.commit()
    assert np.isfinite(whole(tmp_path / "a")).all()
    assert np.isnan(bad[0])  # the caller's block is left alone


def test_nothing_is_seen_before_the_commit_nor_after_an_error(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "a.flac"
    with Writer(target, RATE_HZ, "flac") as writer:
        writer.write(tone(50_000))
        seen = os.listdir(target.parent)
        assert len(seen) == 1
        assert seen[0].startswith(".")
    assert os.listdir(target.parent) == []
    with pytest.raises(ZeroDivisionError), Writer(target, RATE_HZ, "flac"):
        raise ZeroDivisionError
    assert os.listdir(target.parent) == []
    with Writer(target, RATE_HZ, "flac") as writer:
        writer.write(tone(10))
        assert writer.commit() == target
        writer.abort()
        with pytest.raises(ValueError, match="closed"):
            writer.write(tone(1))
        with pytest.raises(ValueError, match="closed"):
            writer.commit()
    assert os.listdir(target.parent) == ["a.flac"]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The kernel refuses to grow a file past `size`, as a full disk would (Python ignores SIGXFSZ)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("format", media.FORMATS)
@pytest.mark.parametrize("size", [10, 20_000])
def test_a_full_disk(tmp_path: Path, format: media.Format, size: int) -> None:  # noqa: A002
    noise = (np.random.default_rng(5).standard_normal(400_000) * 0.1).astype(np.float32)
    target = written(tmp_path / "a", tone(10), "wav")
    before = target.read_bytes()
    with file_size_limit(size), pytest.raises(MediaError) as caught:
        written(target, noise, format)
    assert caught.value.code == "disk_full"
    assert "a" in str(caught.value)
    assert os.listdir(tmp_path) == ["a"]
    assert target.read_bytes() == before


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fills_at_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(MediaError) as caught, Writer(tmp_path / "a", RATE_HZ, "wav") as writer:  # noqa: PT012
        writer.write(tone(10))
        monkeypatch.setattr(os, step, full)
        writer.commit()
    assert caught.value.code == "disk_full"
    assert os.listdir(tmp_path) == []


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for target in (
        tmp_path,
        tmp_path / "file" / "a.wav",
        Path("/proc/nothing/a.wav"),
        tmp_path / ("x" * 256),
    ):
        with pytest.raises(MediaError) as caught:
            Writer(target, RATE_HZ, "wav")
        assert caught.value.code == "unwritable"
    with pytest.raises(MediaError) as caught:
        Writer(tmp_path / "a.mp3", 22_000, "mp3")
    assert caught.value.code == "unsupported"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("format", media.FORMATS)
@pytest.mark.parametrize("rate_hz", [1000, 8000, 22_000, 40_000, 44_100, 50_000, 96_000, 192_000, 700_000])
def test_writable_rates_are_writable(tmp_path: Path, format: media.Format, rate_hz: int) -> None:  # noqa: A002
    rate = writable_rate_hz(format, rate_hz)
    written(tmp_path / "a", tone(3000, rate), format, rate)
    with open_reader(tmp_path / "a") as reader:
        assert reader.rate_hz == rate
        assert reader.read(1).shape == (1,)


# --- policies -------------------------------------------------------------------------------------------


def test_where_output_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    for exists in ("skip", "overwrite", "rename", "fail"):
        assert target_path(path, exists) == path  # type: ignore[arg-type]
    path.touch()
    assert target_path(path, "skip") is None
    assert target_path(path, "overwrite") == path
    assert target_path(path, "rename") == tmp_path / "a (2).wav"
    (tmp_path / "a (2).wav").symlink_to("nowhere")  # a dangling link is a taken name
    assert target_path(path, "rename") == tmp_path / "a (3).wav"
    with pytest.raises(MediaError, match="already") as caught:
        target_path(path, "fail")
    assert caught.value.code == "exists"
    with pytest.raises(MediaError, match="folder"):
        target_path(tmp_path, "overwrite")
    long = tmp_path / ("é" * 125 + ".wav")
    long.touch()
    renamed = target_path(long, "rename")
    assert renamed is not None
    assert len(os.fsencode(renamed.name)) <= 255
    assert renamed.name.endswith(" (2).wav")


@pytest.mark.parametrize("links", [True, False])
def test_a_commit_never_takes_a_name_that_was_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def unsupported(*_: object, **__: object) -> None:
            raise OSError(errno.EPERM, "no hard links on this file system")

        monkeypatch.setattr(os, "link", unsupported)
    path = tmp_path / "a.wav"
    ends: dict[str, Path | None] = {}
    for exists in ("skip", "rename", "fail", "overwrite"):
        with Writer(path, RATE_HZ, "wav", exists=exists) as writer:  # type: ignore[arg-type]
            writer.write(tone(5))
            path.write_bytes(b"other")
            if exists == "fail":
                with pytest.raises(MediaError) as caught:
                    writer.commit()
                assert caught.value.code == "exists"
            else:
                ends[exists] = writer.commit()
        if exists != "overwrite":
            assert path.read_bytes() == b"other"
    assert ends == {"skip": None, "rename": tmp_path / "a (2).wav", "overwrite": path}
    assert path.read_bytes() != b"other"
    assert sorted(os.listdir(tmp_path)) == ["a (2).wav", "a.wav"]


def test_a_second_attempt_takes_the_place_of_a_killed_one(tmp_path: Path) -> None:
    Writer(tmp_path / "a.wav", RATE_HZ, "wav", token="job-7").write(tone(1000))
    (tmp_path / ".myna-other.part").touch()
    with Writer(tmp_path / "a.wav", RATE_HZ, "wav", token="job-7") as writer:
        writer.write(tone(10))
        writer.commit()
    assert len(whole(tmp_path / "a.wav")) == 10
    assert sweep_parts(tmp_path, "job-7") == 0
    assert sweep_parts(tmp_path) == 1
    assert os.listdir(tmp_path) == ["a.wav"]
    with pytest.raises(ValueError, match="token"):
        Writer(tmp_path / "a.wav", RATE_HZ, "wav", token="../x")


def test_formats_by_name(tmp_path: Path) -> None:
    assert format_of(Path("a.FLAC")) == "flac"
    assert format_of(Path("a.oga")) == "ogg"
    assert format_of(Path("a.m4a")) == "wav"
    assert format_of(Path("a.wav"), "mp3") == "mp3"
    assert format_of(Path("a.mp3"), "auto") == "mp3"
