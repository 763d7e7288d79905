"""What a service manager was asked for against what it has; and why it could not be asked."""

from dataclasses import dataclass


class ServiceError(Exception):
    """The autostart can't be set up, looked at or removed; the message names cause and cure.

    `code` is one of the wire's: `state_unwritable` (a folder), `missing_asset` (the manager is not here), `failed`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """Asked against applied. None: the manager could not be asked."""

    manager: str  # systemd, launchd, task scheduler
    path: str | None  # file that holds the definition
    installed: bool
    current: bool  # whether the definition is what this version would write
    enabled: bool | None = None  # whether it starts with the session
    loaded: bool | None = None  # whether the manager has read the definition as it is now
    state: str | None = None  # the manager's own word
    pid: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether the daemon starts with the session as this version would have it."""
        return self.installed and self.current and not self.problems
