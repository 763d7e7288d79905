"""The full-screen monitor, driven without a terminal."""

import asyncio
import time

import pytest

from myna.control import contract
from myna.control.client import Client
from myna.daemon.wire.server import Server

from .conftest import WAIT_S, Desk

pytest.importorskip("textual")

from myna.control.cli.screen import Monitor, bar_share


def test_levels_fill_the_bar() -> None:
    assert [bar_share(level) for level in (None, -90.0, -60.0, -30.0, 0.0, 6.0)] == [0, 0, 0, 0.5, 1, 1]


def test_it_shows_the_status_and_keys_steer(server: Server, client: Client, desk: Desk) -> None:
    async def use() -> None:
        app = Monitor(client, "main", 0.1)

        async def until(text: str, where: str, **events: contract.LogLine | contract.Meters) -> None:
            """Wait for `text`; `events` by their topics are told over and over, for the monitor may not listen yet."""
            deadline = time.monotonic() + WAIT_S
            while text not in str(app.query_one(where).render()):
                assert time.monotonic() < deadline, f"{text!r} never showed"
                for topic, event in events.items():
                    server.publish(topic.replace("_", "."), event)
                await pilot.pause(0.02)

        async with app.run_test() as pilot:
            await until("formant", "#status")
            await until("mind the gap", "#log", log=contract.LogLine(level="warning", message="mind the gap"))
            meters = contract.Meters(session="main", input_db=-30.0, output_db=None, load=None, xruns=0)
            await until("-30 dB", "#input_db", live_meters=meters)
            await pilot.press("m", "up")
            deadline = time.monotonic() + WAIT_S
            while len(desk.calls) < 2:
                assert time.monotonic() < deadline, "the keys sent nothing"
                await pilot.pause(0.02)
            await pilot.press("q")

    asyncio.run(use())
    assert {name for name, _ in desk.calls} == {"switch", "live.set"}
    assert next(request for name, request in desk.calls if name == "switch").on
    assert next(request for name, request in desk.calls if name == "live.set").values == {"pitch": 1.0}
