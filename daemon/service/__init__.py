"""Starting with the session: systemd, launchd, Task Scheduler."""

from myna.daemon.service.notify import Notifier, Watchdog

__all__ = ["Notifier", "Watchdog"]
