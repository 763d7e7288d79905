"""What a worker says when an attempt fails: every exception as a published code."""

import errno
import traceback

from myna.control.errors import CODES, MynaError
from myna.daemon.jobs.convert import WorkFolderUnwritable
from myna.daemon.media import MediaError
from myna.engines.base import EngineError

# Of files: the code on the wire; the exact reason is in the facts.
_MEDIA = {
    "vanished": "not_found",
    "unreadable": "not_allowed",
    "exists": "refused",
}
_ENGINE = {
    "engine.model_unusable": "model_unusable",
    "engine.missing_asset": "missing_asset",
    "engine.parameter_refused": "bad_request",
    "engine.backend": "compute_unavailable",
    "engine.out_of_memory": "compute_unavailable",
}
_REASONS = {"engine.backend": "backend", "engine.out_of_memory": "out_of_memory"}


def fault_of(error: BaseException) -> tuple[str, str, dict[str, object]]:
    """The code, message and facts of what went wrong. A bug of ours keeps its traceback in the facts."""
    if isinstance(error, MynaError):
        return error.code, error.message, error.facts
    if isinstance(error, MediaError):
        code = _MEDIA.get(error.code, "failed")
        if error.code == "unwritable" and error.facts.get("errno") in (errno.EACCES, errno.EPERM):
            code = "not_allowed"
        return code, str(error), {**error.facts, "reason": error.code}
    if isinstance(error, EngineError):
        facts = dict(error.facts)
        if error.code in _REASONS:
            facts["reason"] = _REASONS[error.code]
        return _ENGINE.get(error.code, "failed"), str(error), facts
    if isinstance(error, MemoryError):
        text = "This machine has no memory left for the job. Free some, or run fewer jobs at once."
        return "compute_unavailable", text, {"reason": "out_of_memory"}
    if isinstance(error, WorkFolderUnwritable):
        text = f"Finished segments can't be kept: {error}. Free disk space under the state folder, then retry."
        return "state_unwritable", text, {}
    lines = traceback.format_exception(error)
    return "internal", f"A bug: {type(error).__name__}: {error}", {"traceback": "".join(lines)[-4000:]}


assert {*_MEDIA.values(), *_ENGINE.values()} <= CODES.keys()
