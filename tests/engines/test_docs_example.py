"""The engine that the documentation shows, installed as shown: found, live, on files, and lawful."""

import os
import re
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType

import laws
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from myna.control.client import Client
from myna.control.contract import (
    JobInfo,
    JobRef,
    JobSpec,
    JobsSubmit,
    JobsSubmitted,
    LiveDevices,
    LiveStart,
    SessionRef,
    SessionStatus,
    VoicesReply,
)
from myna.engines.base import EngineSpec, ParameterRefused, Placement, VoiceAsset, VoiceParameters
from myna.engines.registry import GROUP, find_engines
from tools.private_daemon import PrivateDaemon

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
DEADLINE_S = 60.0
Sound = NDArray[np.float32]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with the example in it, as an installer would leave it."""
    folder = tmp_path_factory.mktemp("site")
    project = tomllib.loads(blocks("toml")[0])["project"]
    (folder / "octave_voice.py").write_text(blocks("python")[0], encoding="utf-8")
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in named.items())
              for group, named in project["entry-points"].items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(points) + "\n")
    return folder


@pytest.fixture(scope="module")
def spec(site: Path) -> Iterator[EngineSpec]:
    found = [point for each in distributions(path=[str(site)]) for point in each.entry_points if point.group == GROUP]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield find_engines(found).spec("octave")


@pytest.fixture(scope="module")
def example(spec: EngineSpec) -> ModuleType:
    return sys.modules["octave_voice"]


@pytest.fixture(scope="module")
def phrase(speech_16k: Sound) -> Sound:
    """0.7 s of speech that begins and ends with silence, 16 kHz."""
    part = speech_16k[16000:27000].copy()
    part[:300] = part[-2000:] = 0.0
    return part


def test_it_holds_every_law_of_stages(example: ModuleType, phrase: Sound) -> None:
    laws.check_stage_laws(lambda: example.OctaveLive(1.5, 16000), 16000, signal=phrase)
    laws.check_stage_laws(lambda: example.OctaveLive(1.5, 48000), 48000)


def test_the_law_check_of_the_page_runs_as_shown(example: ModuleType) -> None:
    exec(compile(blocks("python")[1], str(PAGE), "exec"), {"OctaveLive": example.OctaveLive})


def test_silence_after_its_tail_is_exact(example: ModuleType, phrase: Sound) -> None:
    voice = example.OctaveLive(1.5, 16000)
    voice.process(phrase + np.float32(0.1))
    after = voice.process(np.zeros(voice.tail_frames + 100, np.float32))
    assert after[: voice.tail_frames].any()
    assert not after[voice.tail_frames :].any()


def test_it_is_the_same_live_and_on_files_wherever_it_is_cut(spec: EngineSpec, phrase: Sound) -> None:
    (asset, _) = spec.built_in
    live = spec.open_live(asset, Placement(), VoiceParameters(), 16000)
    file = spec.open_file(asset, Placement(), VoiceParameters())
    whole = file.convert(phrase, 16000)
    assert whole.shape == phrase.shape
    late = live.latency_frames
    np.testing.assert_array_equal(live.process(phrase)[late:], whole[: len(phrase) - late])
    context, cut = round(file.context_ms * 16), 5000
    after = file.convert(phrase[cut - context :], 16000)[context:]
    np.testing.assert_allclose(after, whole[cut:], rtol=0, atol=1e-6)


def test_it_is_no_copy_of_what_was_said(spec: EngineSpec, speech_16k: Sound, quality: ModuleType) -> None:
    made = spec.open_file(spec.built_in[0], Placement(), VoiceParameters()).convert(speech_16k, 16000)
    assert quality.largest_correlations(speech_16k, made, 16000).max() < 0.9


def test_a_bad_voice_is_told_before_and_refused_at_loading(spec: EngineSpec) -> None:
    bad = VoiceAsset(id="bad", engine="octave", defaults={"drive": "much"})
    assert "much" in spec.check(bad)[0]
    with pytest.raises(ParameterRefused, match="much"):
        spec.open_live(bad, Placement(), VoiceParameters(), 48000)
    assert all(spec.check(asset) == () for asset in spec.built_in)


@pytest.fixture(scope="module")
def client(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a real daemon in whose environment the example is installed."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    with PrivateDaemon(tmp_path_factory.mktemp("daemon"), PYTHONPATH=path) as daemon:
        daemon.start()
        with Client(state_dir=daemon.state_dir, timeout_s=DEADLINE_S) as made:
            yield made


def wait_for(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.e2e
def test_a_daemon_lists_it_speaks_with_it_and_converts_with_it(
    client: Client, example: ModuleType, speech_16k: Sound, tmp_path: Path
) -> None:
    listed = {voice.id: voice.engine for voice in client.call("voices.list", reply=VoicesReply).voices}
    assert listed["octave"] == listed["octave-soft"] == "octave"
    source, live, file = tmp_path / "talk.wav", tmp_path / "live.wav", tmp_path / "file.wav"
    talk = speech_16k[:32000]
    soundfile.write(source, talk, 16000, subtype="FLOAT")
    wanted = example.OctaveFile(1.5).convert(talk, 16000)

    devices = LiveDevices(input=f"file:{source}", output=f"file:{live}", fast=True)
    started = client.call("live.start", LiveStart(voice="octave", devices=devices), SessionStatus)
    assert started.engine == "octave"
    wait_for(lambda: client.call("live.state", SessionRef(), SessionStatus).state == "stopped")
    heard, rate_hz = soundfile.read(live, dtype="float32")
    assert rate_hz == 16000
    scores = np.correlate(heard, wanted[8000:16000], "valid")
    at = int(np.argmax(scores))  # at 8000 and the session's delay
    assert at > 8000
    np.testing.assert_allclose(heard[at : at + 8000], wanted[8000:16000], atol=1e-4)

    job = JobSpec(kind="convert", voice="octave", input=str(source), output=str(file))
    (name,) = client.call("jobs.submit", JobsSubmit(jobs=(job,)), JobsSubmitted).ids
    ended = ("done", "failed", "cancelled")
    wait_for(lambda: client.call("jobs.show", JobRef(id=name), JobInfo).state in ended)
    assert client.call("jobs.show", JobRef(id=name), JobInfo).state == "done"
    made, _ = soundfile.read(file, dtype="float32")
    np.testing.assert_allclose(made, wanted, atol=1e-4)  # a WAV of 16 or 24 bits
