"""Which service manager a system has."""

from types import ModuleType

from myna.daemon.service import launchctl, schtasks, systemctl

MANAGERS: dict[str, ModuleType] = {"Linux": systemctl, "Darwin": launchctl, "Windows": schtasks}
