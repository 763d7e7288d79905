"""Every error code of the wire, with the exit code a command ends with."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `myna` and `mynad`. Never renumbered."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    BUSY = 5
    NOT_ALLOWED = 6
    MISSING_ASSET = 7
    DEVICE_UNAVAILABLE = 8
    COMPUTE_UNAVAILABLE = 9
    WORKER_CRASHED = 10
    TIMED_OUT = 11
    INTERRUPTED = 130


# Codes are never renamed or reused; docs/errors in PROTOCOL.md is held equal to this table by a test.
CODES: dict[str, Exit] = {
    "internal": Exit.FAILED,  # a bug of ours; the log has the traceback
    "failed": Exit.FAILED,  # the work was tried and did not succeed
    "state_unwritable": Exit.FAILED,  # the state directory is read-only or full
    "bad_request": Exit.USAGE,  # malformed message, unknown method or key, wrong type, out of range
    "config_invalid": Exit.USAGE,  # a settings file or override does not validate
    "too_large": Exit.USAGE,  # a message over the limit
    "version_mismatch": Exit.USAGE,  # client and daemon speak different protocol versions
    "unreachable": Exit.UNREACHABLE,  # no daemon answers
    "not_found": Exit.NOT_FOUND,  # no voice, job, model, session or key of that name
    "busy": Exit.BUSY,  # in use or queue full; facts may carry retry_after_s
    "refused": Exit.BUSY,  # the state does not allow it; the message says what would
    "already_running": Exit.BUSY,  # a second daemon on one state directory
    "not_allowed": Exit.NOT_ALLOWED,  # needs a key, or consent
    "missing_asset": Exit.MISSING_ASSET,  # a model file is not on this machine
    "model_unusable": Exit.MISSING_ASSET,  # a model file is damaged or of another kind
    "device_unavailable": Exit.DEVICE_UNAVAILABLE,
    "compute_unavailable": Exit.COMPUTE_UNAVAILABLE,  # facts.reason: out_of_memory, no_device, backend
    "worker_crashed": Exit.WORKER_CRASHED,
    "timed_out": Exit.TIMED_OUT,
    "interrupted": Exit.INTERRUPTED,
}


class MynaError(Exception):
    """An error with a stable code; what the wire carries and what the command line prints.

    `message` names cause and cure in one or two sentences; `facts` holds what a program needs.
    """

    def __init__(self, code: str, message: str, /, **facts: object) -> None:
        if code not in CODES:
            raise ValueError(f"unpublished error code {code!r}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts: dict[str, object] = facts

    @property
    def exit_code(self) -> Exit:
        """The exit code this error ends a command with."""
        return CODES[self.code]
