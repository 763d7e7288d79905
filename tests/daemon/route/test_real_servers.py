"""The virtual microphone on real sound servers: made, proved, kept over a restart, removed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desktop import Desktop
from numpy.typing import NDArray

from myna.daemon.route.alsa import find_plugin
from myna.daemon.route.names import MICROPHONE, SINK
from myna.daemon.route.tone import find_tone

pytestmark = pytest.mark.e2e


def route(desktop: Desktop, action: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command; returns its exit code and its JSON."""
    done = desktop.run(sys.executable, "-m", "myna.daemon.route", action, "--json", *options)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def files(home: Path) -> set[str]:
    """What lies below a home, the servers' own state and cookies apart."""
    return {
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.is_file() and path.name != "cookie" and ".local" not in path.parts
    }


def ours(desktop: Desktop) -> list[str]:
    """Every node that bears one of our names, duplicates too; monitors apart."""
    names = desktop.names("sinks") + desktop.names("sources")
    return sorted(name for name in names if name.startswith((SINK, MICROPHONE)) and not name.endswith(".monitor"))


def record(desktop: Desktop, seconds: float) -> NDArray[np.float32]:
    """What the microphone delivers, one channel of it."""
    command = ["parec", "-d", MICROPHONE, "--raw", "--format=float32le", "--rate=48000", "--latency-msec=20"]
    with subprocess.Popen(command, env=desktop.client, stdout=subprocess.PIPE) as recorder:
        assert recorder.stdout is not None
        data = recorder.stdout.read(int(seconds * 48000) * 8)
        recorder.kill()
    return np.frombuffer(data, np.float32)[::2]


def test_from_nothing_to_nothing(desktop: Desktop) -> None:
    before, defaults = files(desktop.home), desktop.defaults()
    code, report = route(desktop, "status")
    assert (code, report["present"], report["server"]) == (4, False, desktop.kind)

    code, report = route(desktop, "create")
    assert (code, report["present"], report["persistent"]) == (0, True, True)
    assert desktop.defaults() == defaults
    assert ours(desktop) == [MICROPHONE, SINK]

    code, report = route(desktop, "status")
    assert (code, report["proof"], report["problems"]) == (0, "ok", [])
    assert report["level_db"] == pytest.approx(-40, abs=0.5)

    assert route(desktop, "create")[0] == 0
    assert ours(desktop) == [MICROPHONE, SINK]

    code, answer = route(desktop, "remove")
    assert (code, answer) == (0, {"removed": True})
    assert ours(desktop) == []
    assert files(desktop.home) == before
    assert desktop.defaults() == defaults
    assert route(desktop, "remove") == (0, {"removed": False})


def test_it_is_back_once_after_the_server_was_killed(desktop: Desktop) -> None:
    assert route(desktop, "create")[0] == 0
    for _ in range(2):
        desktop.restart()
        desktop.wait("the microphone", lambda: MICROPHONE in desktop.names("sources"))
        assert route(desktop, "create")[0] == 0
        assert ours(desktop) == [MICROPHONE, SINK]
        assert route(desktop, "status")[1]["proof"] == "ok"
        assert all(line.endswith(("speakers", "headset")) for line in desktop.defaults())
    assert route(desktop, "remove") == (0, {"removed": True})
    assert ours(desktop) == []
    desktop.restart()
    assert ours(desktop) == []


def test_two_makers_at_once_make_one_microphone(desktop: Desktop) -> None:
    command = [sys.executable, "-m", "myna.daemon.route", "create", "--json"]
    makers = [
        subprocess.Popen(command, env=desktop.client, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    answers = [maker.communicate(timeout=60) for maker in makers]
    for maker, (out, err) in zip(makers, answers, strict=True):
        assert (maker.returncode, err) == (0, b""), out
    assert ours(desktop) == [MICROPHONE, SINK]


def test_the_tone_is_not_sent_while_somebody_records(desktop: Desktop) -> None:
    route(desktop, "create")
    with subprocess.Popen(
        ["parec", "-d", MICROPHONE, "--raw"], env=desktop.client, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as recorder:
        assert recorder.stdout is not None
        recorder.stdout.read(4)
        desktop.wait("the recorder", lambda: route(desktop, "status", "--no-tone")[1]["in_use_by"] == 1)
        code, report = route(desktop, "status")
        recorder.kill()
    assert (code, report["proof"], report["level_db"]) == (0, "in_use", None)


def test_portaudio_plays_into_it_by_name(desktop: Desktop) -> None:
    if find_plugin() is None:
        pytest.skip("ALSA has no plugin for sound servers (python3 tools/dev.py setup --audio)")
    route(desktop, "create")
    script = Path(__file__).with_name("play_into.py")
    command = [sys.executable, "-W", "error", str(script), str(desktop.folder)]
    with subprocess.Popen(command, env=desktop.client, stderr=subprocess.PIPE) as player:
        desktop.wait("the player", lambda: desktop.run("pactl", "list", "short", "sink-inputs").stdout or player.poll())
        heard = record(desktop, 1.5)
        assert player.stderr is not None
        assert player.wait(timeout=30) == 0, player.stderr.read().decode()
    assert find_tone(heard).reason == "ok"
    assert find_tone(record(desktop, 0.5)).reason == "no_signal"


def test_a_users_own_start_script_is_kept(desktop: Desktop) -> None:
    if desktop.kind != "pulseaudio":
        pytest.skip("PipeWire reads fragments, no start script")
    script = desktop.home / ".config/pulse/default.pa"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("# mine\n.include /etc/pulse/default.pa\nset-default-sink speakers\n")
    mine = script.read_text()
    route(desktop, "create")
    assert script.read_text().startswith(mine)
    route(desktop, "remove")
    assert script.read_text() == mine


def test_without_a_server_it_says_what_to_start(desktop: Desktop) -> None:
    route(desktop, "create")
    desktop.stop()
    code, answer = route(desktop, "status")
    assert (code, answer["error"]["code"]) == (8, "device_unavailable")
    assert "systemctl --user start" in answer["error"]["message"]
    assert route(desktop, "remove") == (0, {"removed": True})
    desktop.start()
    assert ours(desktop) == []
