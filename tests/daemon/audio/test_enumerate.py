"""Listing devices never hangs and never raises, and the supervisor's side loads no sound library."""

import subprocess
import sys

from myna.daemon.audio.choose import Listed
from myna.daemon.audio.enumerate import described, list_in_child


def test_a_child_that_is_too_slow_is_given_up() -> None:
    reply = list_in_child(timeout_s=0.001)
    assert reply.devices == ()
    assert reply.problem is not None
    assert "did not answer" in reply.problem


def test_an_empty_list_says_why() -> None:
    reply = list_in_child()
    assert reply.devices or reply.problem


def test_asking_loads_no_portaudio() -> None:
    code = (
        "import sys, myna.daemon.audio.enumerate, myna.daemon.audio.trial, myna.daemon.audio.open\n"
        "sys.exit('sounddevice' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_index_crosses_the_wire() -> None:
    info = described(
        Listed(index=3, name="CABLE Input", host_api="MME", inputs=0, outputs=2, rate_hz=44100, latency_out_ms=9.0)
    )
    assert not hasattr(info, "index")
    assert (info.is_virtual, info.latency_in_ms, info.latency_out_ms) == (True, None, 9.0)
