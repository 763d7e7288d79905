"""What the test audio server writes and whom it signals; no server is started here."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tools.audio_server import (
    NODES,
    AudioServer,
    Process,
    alsa_settings,
    pipewire_settings,
    pulse_script,
    pulse_settings,
)


def test_every_null_sink_is_without_rewinds() -> None:
    script = pulse_script(Path("/run/x/native"), 48000)
    sinks = [line for line in script.splitlines() if "module-null-sink" in line]
    assert len(sinks) == 2
    assert all("norewinds=1" in line and "rate=48000" in line for line in sinks)
    assert all(f"name={node} " in script for node in NODES)
    assert script.startswith(".fail\n")


def test_one_rate_and_float_throughout() -> None:
    assert "default-sample-format = float32le\n" in pulse_settings(44100)
    assert "default-sample-rate = 44100\n" in pulse_settings(44100)
    assert "allowed-rates = [ 44100 ]" in pipewire_settings(44100)


def test_alsa_lists_every_node_and_the_systems_own() -> None:
    settings = alsa_settings(Path("/run/x/native"))
    assert settings.startswith("</usr/share/alsa/alsa.conf>\n")
    for node in (*NODES, "!default"):
        assert f'pcm.{node} {{ type pulse server "unix:/run/x/native"' in settings
    assert settings.count("show on") == len(NODES)


def test_only_the_very_process_is_signalled() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process = Process.of("child", child.pid)
        assert process.alive()
        Process("recycled", child.pid, process.started - 1).send(signal.SIGKILL)
        assert child.poll() is None
        process.send(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
        assert not process.alive()
    finally:
        child.kill()
        child.communicate()


def test_clients_see_nothing_of_another_server(tmp_path: Path) -> None:
    os.environ["PULSE_SINK"] = "theirs"
    try:
        server = AudioServer("pulse", tmp_path)
        assert "PULSE_SINK" not in server.env
        assert server.env["PULSE_SERVER"] == f"unix:{tmp_path}/run/pulse/native"
        assert all(value.startswith((str(tmp_path), f"unix:{tmp_path}")) for value in server.variables.values())
    finally:
        del os.environ["PULSE_SINK"]


def test_attach_without_a_server_is_none(tmp_path: Path) -> None:
    assert AudioServer.attach(tmp_path) is None
