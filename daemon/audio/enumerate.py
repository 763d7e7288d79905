"""List the sound devices from a child process: `python -m myna.daemon.audio.enumerate` prints them as JSON.

PortAudio's list is only fresh in a fresh process, and a sick sound system can hang whoever asks; so a child asks.
"""

import subprocess
import sys

import msgspec

from myna.control.contract import DeviceInfo, DevicesReply
from myna.daemon.audio.backend import DeviceError
from myna.daemon.audio.choose import Listed
from myna.daemon.audio.virtual import is_virtual

TIMEOUT_S = 10.0
MAX_REASON = 300


def list_in_child(timeout_s: float = TIMEOUT_S) -> DevicesReply:
    """All sound devices, as a child process sees them; blocks for up to `timeout_s`.

    An empty list says why in `problem`; nothing is raised.
    """
    command = [sys.executable, "-m", "myna.daemon.audio.enumerate"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        problem = f"The sound system did not answer within {timeout_s:.0f} s; restart its server."
        return DevicesReply(devices=(), problem=problem)
    try:
        return msgspec.json.decode(done.stdout, type=DevicesReply)
    except msgspec.MsgspecError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        problem = f"Listing the devices failed (exit {done.returncode}): {last[0][:MAX_REASON]}"
        return DevicesReply(devices=(), problem=problem)


def described(device: Listed) -> DeviceInfo:
    """A listed device as the wire tells it; without its index, which means nothing to another process."""
    return DeviceInfo(
        name=device.name,
        host_api=device.host_api,
        inputs=device.inputs,
        outputs=device.outputs,
        rate_hz=device.rate_hz,
        latency_in_ms=device.latency_in_ms,
        latency_out_ms=device.latency_out_ms,
        is_default_input=device.system_default_input,
        is_default_output=device.system_default_output,
        is_virtual=is_virtual(device.name),
    )


def main() -> int:
    """Print a DevicesReply."""
    from myna.daemon.audio.portaudio import list_devices

    try:
        devices = tuple(described(device) for device in list_devices())
        problem = None if devices else "No sound device is there; is a sound server running for this user?"
    except DeviceError as error:
        devices, problem = (), str(error)
    sys.stdout.buffer.write(msgspec.json.encode(DevicesReply(devices=devices, problem=problem)) + b"\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
