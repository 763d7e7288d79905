"""Plays a tone through PortAudio into the device `Myna`: run as a process of its own, as the live worker is.

PortAudio reads ALSA's configuration once a process, so this cannot happen inside the test.
"""

import os
import sys
from pathlib import Path

from myna.daemon.route import OUTPUT_DEVICE, worker_environment

os.environ.update(worker_environment(Path(sys.argv[1])))

import numpy as np
import sounddevice

RATE_HZ, TONE_HZ = 48_000, 997.0

assert OUTPUT_DEVICE in [device["name"] for device in sounddevice.query_devices()]
tone = 0.01 * np.sin(2 * np.pi * TONE_HZ * np.arange(3 * RATE_HZ) / RATE_HZ)
sounddevice.play(np.stack([tone, tone], 1).astype(np.float32), RATE_HZ, device=OUTPUT_DEVICE, blocking=True)
