"""The virtual microphone; what the daemon itself needs of it. The command's side is in `route.route`."""

from myna.daemon.route.alsa import worker_environment
from myna.daemon.route.names import PCM as OUTPUT_DEVICE

__all__ = ["OUTPUT_DEVICE", "worker_environment"]
