"""A microphone and an output whose clocks run apart, on two real sound servers: the delay stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_daemon import Daemon

from tools.audio_server import OUT_CABLE, TEST_MIC, AudioServer, faketime_library, missing_programs
from tools.cable import noise, play_and_hear

pytestmark = pytest.mark.e2e

FAR = "far_cable"


@pytest.fixture(params=[1.001, 0.999], ids=["fast", "slow"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[AudioServer, AudioServer]]:
    """One for the microphone, and one for the output that is 1000 ppm off, far more than any two crystals are."""
    if missing := missing_programs("pulse"):
        pytest.skip(f"no PulseAudio to test with: {', '.join(missing)} not installed")
    if faketime_library() is None:
        pytest.skip("libfaketime is not installed")
    with AudioServer("pulse") as near, AudioServer("pulse", clock=request.param) as far:
        settings = near.directory / "asound.conf"
        settings.write_text(
            settings.read_text()
            + f'pcm.{FAR} {{ type pulse server "unix:{far.socket}" device "{OUT_CABLE}" handle_underrun 0 '
            f'hint {{ show on description "{FAR}" }} }}\n'
        )
        yield near, far


def test_the_delay_stays_while_clocks_run_apart(servers: tuple[AudioServer, AudioServer], tmp_path: Path) -> None:
    near, far = servers
    with Daemon(near, tmp_path) as daemon:
        daemon.myna("up", "--input", TEST_MIC, "--output", FAR, "--voice", "neutral", "--set", "block_ms=20", "--json")
        daemon.until(lambda s: s["blocks"] > 400, 60.0)  # the clocks' models have locked
        # Short, and low: within it the two clocks part by less than a period of its highest part.
        burst = noise(0.4, 600.0)
        delays = []
        for blocks in (400, 1000):  # 600 blocks are 12 s, in which 1000 ppm come to 12 ms
            status = daemon.until(lambda s, wanted=blocks: s["blocks"] > wanted, 60.0)  # type: ignore[misc]
            delay_ms, peak = play_and_hear(near, burst, far_server=far).delay_ms()
            assert peak > 0.9
            # What a busy machine adds to the prefill is told, and is no drift.
            delays.append(delay_ms - status["latency"]["prefill_ms"])
        print("delays without prefill", delays, status["drift_ppm"], status["xruns"])
        assert max(delays) - min(delays) < 3.0
        assert status["duplex"] is False
        assert abs(abs(status["drift_ppm"]) - 1000) < 300
        daemon.myna("down")
