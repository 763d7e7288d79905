"""Open devices for a moment, from a child process that may hang or crash instead of us."""

import subprocess
import sys
import time

import msgspec

from myna.control.contract import DevicesTest, DevicesTestReply, DeviceTestRow
from myna.daemon.audio.backend import DeviceError, StreamRequest
from myna.daemon.audio.choose import Direction

TIMEOUT_S = 60.0
CALLBACKS = 3
CALLBACK_S = 2.0


def try_in_child(asked: DevicesTest, timeout_s: float = TIMEOUT_S) -> DevicesTestReply:
    """Open each device (or the named ones) on its own in a child process; blocks for up to `timeout_s`.

    A child that hangs or crashes leaves the rows it had told, and one row that says what happened.
    """
    command = [sys.executable, "-m", "myna.daemon.audio.trial"]
    rows: list[DeviceTestRow] = []
    problem = ""
    try:
        done = subprocess.run(
            command, input=msgspec.json.encode(asked), capture_output=True, timeout=timeout_s, check=False
        )
        told = done.stdout
        if done.returncode:
            problem = f"the test ended with exit status {done.returncode}"
    except subprocess.TimeoutExpired as error:
        told, problem = error.stdout or b"", f"the device did not answer within {timeout_s:.0f} s"
    for line in told.splitlines():
        try:
            rows.append(msgspec.json.decode(line, type=DeviceTestRow))
        except msgspec.MsgspecError:
            problem = problem or "the test was cut off"
    if problem:
        name = asked.input or asked.output or "(next device)"
        direction: Direction = "input" if asked.input is not None else "output"
        rows.append(DeviceTestRow(name=name, direction=direction, ok=False, detail=problem))
    return DevicesTestReply(rows=tuple(rows))


def try_device(name: str, direction: Direction, host_api: str | None = None) -> DeviceTestRow:
    """Open one direction of a device until it has called back a few times."""
    from myna.daemon.audio.portaudio import PortAudioBackend

    hears = direction == "input"
    request = StreamRequest(
        input=name if hears else None,
        output=None if hears else name,
        host_api=host_api,
        want_input=hears,
        want_output=not hears,
    )
    try:
        stream = PortAudioBackend().open(request)
    except DeviceError as error:
        return DeviceTestRow(name=name, direction=direction, ok=False, detail=str(error))
    try:
        stream.start()
        core, facts = stream.source if hears else stream.sink, stream.facts
        deadline = time.monotonic() + CALLBACK_S
        while core is not None and core.stats()["callbacks"] < CALLBACKS:
            if time.monotonic() > deadline:
                detail = f"opened, but did not call back within {CALLBACK_S:.0f} s"
                return DeviceTestRow(name=name, direction=direction, ok=False, detail=detail)
            time.sleep(0.01)
        rate_hz = facts.rate_in_hz if hears else facts.rate_out_hz
        detail = f"{facts.host_api}, {rate_hz} Hz"
        return DeviceTestRow(name=name, direction=direction, ok=True, detail=detail)
    except DeviceError as error:
        return DeviceTestRow(name=name, direction=direction, ok=False, detail=str(error))
    finally:
        stream.close()


def main() -> int:
    """Read a DevicesTest, print a DeviceTestRow per line as each is known."""
    from myna.daemon.audio.portaudio import list_devices

    asked = msgspec.json.decode(sys.stdin.buffer.read() or b"{}", type=DevicesTest)
    wanted: list[tuple[str, Direction, str | None]] = []
    if asked.input is not None:
        wanted.append((asked.input, "input", None))
    if asked.output is not None:
        wanted.append((asked.output, "output", None))
    if not wanted:
        for device in list_devices():
            if device.inputs:
                wanted.append((device.name, "input", device.host_api))
            if device.outputs:
                wanted.append((device.name, "output", device.host_api))
    for name, direction, host_api in wanted:
        sys.stdout.buffer.write(msgspec.json.encode(try_device(name, direction, host_api)) + b"\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
