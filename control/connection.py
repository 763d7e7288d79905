"""Where a daemon and its clients meet: private directories and the connection file."""

import contextlib
import os
import stat
import sys
from pathlib import Path

import msgspec
import platformdirs
from msgspec import Struct

from myna.control.contract import PROTOCOL_VERSION
from myna.control.errors import MynaError
from myna.control.process import is_running, started_at

MAX_IPC_BYTES = 100
"""Longest ipc path: sun_path holds 104 bytes on macOS, 108 on Linux, less the terminator."""
FILE_NAME = "connection.json"


class Connection(Struct, frozen=True, kw_only=True):
    """How to reach a daemon. Read from `connection.json` in its state directory (mode 0600)."""

    endpoint: str
    events: str
    pid: int | None = None  # None: on another machine
    started: str | None = None  # opaque start time of that process; tells a reused pid from the daemon
    protocol: int = PROTOCOL_VERSION
    version: str = ""
    state_dir: str | None = None
    server_key: str | None = None  # CURVE public key of the daemon, Z85; None: no CURVE
    client_key: str | None = None  # CURVE key pair of the client, Z85
    client_secret: str | None = None


def state_dir(given: Path | str | None = None) -> Path:
    """The daemon's state directory: `given`, else `MYNA_STATE_DIR`, else the platform's."""
    chosen = given or os.environ.get("MYNA_STATE_DIR") or platformdirs.user_state_dir("myna", appauthor=False)
    return Path(chosen).expanduser().absolute()


def connection_file(state: Path) -> Path:
    """Where the connection file of a state directory is."""
    return state / FILE_NAME


def private_dir(path: Path) -> Path:
    """Make sure `path` is a directory of this user that nobody else can enter.

    Raises:
        MynaError: `not_allowed` if it belongs to somebody else or is a link, `state_unwritable` if it
            can't be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.lstat() if sys.platform != "win32" else path.stat()
    except OSError as error:
        raise MynaError(
            "state_unwritable",
            f"The directory {path} can't be made: {error.strerror or error}. "
            "Free space or permissions there, or set MYNA_STATE_DIR (or --state-dir) to another place.",
            path=str(path),
        ) from error
    if sys.platform == "win32":  # the profile's access list is inherited; POSIX modes mean nothing there
        return path
    if stat.S_ISLNK(found.st_mode):
        target = path.stat()
        if target.st_uid != os.getuid():
            raise _foreign(path, target.st_uid)
        found = target
    if not stat.S_ISDIR(found.st_mode):
        raise MynaError("state_unwritable", f"{path} is not a directory; move it out of the way.", path=str(path))
    if found.st_uid != os.getuid():
        raise _foreign(path, found.st_uid)
    if stat.S_IMODE(found.st_mode) & 0o077:
        try:
            path.chmod(0o700)
        except OSError as error:
            raise MynaError(
                "not_allowed",
                f"Others can enter {path} and it can't be closed: {error.strerror}. Run `chmod 700 {path}`.",
                path=str(path),
            ) from error
    return path


def _foreign(path: Path, owner: int) -> MynaError:
    return MynaError(
        "not_allowed",
        f"{path} belongs to user {owner}, not to you; remove it, or set MYNA_STATE_DIR and MYNA_RUNTIME_DIR "
        "to a place of your own.",
        path=str(path),
        owner=owner,
    )


def ipc_endpoints(state: Path) -> tuple[str, str]:
    """Endpoints (requests, events) for the daemon of a state directory, in a 0700 directory.

    The names carry a hash of the state directory, so that two daemons of one user never share a socket.
    A runtime directory whose path would pass the limit of a socket's name is replaced by a short one.
    """
    import hashlib  # the daemon's business; clients read the endpoints, and start without these two
    import tempfile

    tag = hashlib.sha256(os.fsencode(state)).hexdigest()[:8]
    given = os.environ.get("MYNA_RUNTIME_DIR")
    uid = os.getuid() if hasattr(os, "getuid") else 0
    candidates = [Path(given)] if given else _runtime_dirs(uid)
    candidates += [Path(tempfile.gettempdir()) / f"myna-{uid}", Path("/tmp") / f"myna-{uid}"]
    refused: MynaError | None = None
    for candidate in candidates:
        directory = candidate.expanduser().absolute()
        longest = directory / f"{tag}.events"
        if len(os.fsencode(longest)) >= MAX_IPC_BYTES:
            continue
        try:
            private_dir(directory)
        except MynaError as error:
            refused = refused or error
            if given and candidate is candidates[0]:  # asked for by name: no silent way around it
                raise
            continue
        return f"ipc://{directory / f'{tag}.control'}", f"ipc://{longest}"
    raise refused or MynaError(
        "state_unwritable",
        "No short enough private directory for the control socket; set MYNA_RUNTIME_DIR to one.",
    )


def default_endpoints(state: Path) -> tuple[str, str | None]:
    """Endpoints (requests, events) where nothing else is asked for: ipc, or loopback TCP where there is none.

    Events None: beside the requests. Errors as `ipc_endpoints`.
    """
    return ("tcp://127.0.0.1:*", None) if sys.platform == "win32" else ipc_endpoints(state)


def _runtime_dirs(uid: int) -> list[Path]:
    """The platform's runtime directory, if it has one (platformdirs warns where a session has none)."""
    if sys.platform == "darwin":
        return [Path(platformdirs.user_runtime_dir("myna", appauthor=False))]
    session = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}")
    return [session / "myna"] if session.is_dir() else []


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600, whole or not at all. MynaError `state_unwritable` if it can't be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise MynaError(
            "state_unwritable",
            f"{path} can't be written: {error.strerror or error}. Free space or permissions there.",
            path=str(path),
        ) from error


def write_connection(state: Path, connection: Connection) -> Path:
    """Tell clients where the daemon is; returns the file. Errors as `private_dir` and `write_private`."""
    path = connection_file(private_dir(state))
    write_private(path, msgspec.json.format(msgspec.json.encode(connection)) + b"\n")
    return path


def mend_connection(state: Path, connection: Connection) -> bool:
    """Write the file again if somebody removed or damaged it; whether that was so. Errors as `write_connection`.

    That of another daemon that lives is left alone: two must not take it from each other for ever.
    """
    with contextlib.suppress(MynaError):
        found = load_connection(connection_file(state))
        if found == connection or is_alive(found):
            return False
    write_connection(state, connection)
    return True


def remove_connection(state: Path, pid: int) -> None:
    """Remove the connection file if it is that of process `pid`; never somebody else's."""
    path = connection_file(state)
    with contextlib.suppress(OSError, MynaError):
        if load_connection(path).pid == pid:
            path.unlink()


def load_connection(path: Path) -> Connection:
    """Read a connection file without asking whether its daemon lives.

    Raises:
        MynaError: `unreachable` if there is none, `not_allowed` if it is another user's, `config_invalid`
            if it is damaged.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(65536)
    except FileNotFoundError:
        raise MynaError(
            "unreachable", "No daemon is running; start one with `myna up` or `mynad`.", path=str(path)
        ) from None
    except OSError as error:
        raise MynaError(
            "not_allowed",
            f"{path} can't be read: {error.strerror or error}. Mend that, or set MYNA_STATE_DIR.",
            path=str(path),
        ) from error
    if hasattr(os, "getuid") and found.st_uid not in (os.getuid(), 0):
        raise _foreign(path, found.st_uid)
    try:
        return msgspec.json.decode(data, type=Connection)
    except msgspec.MsgspecError as error:
        raise MynaError(
            "config_invalid",
            f"{path} is damaged ({error}). A running daemon mends it at once: try again; else `myna up` starts one.",
            path=str(path),
        ) from error


def read_connection(state: Path | None = None) -> Connection:
    """The running daemon's connection; `MYNA_CONNECTION` names a file that wins over the state directory.

    Raises:
        MynaError: as `load_connection`, and `unreachable` with the fact `stale` if the file's daemon is gone.
    """
    given = os.environ.get("MYNA_CONNECTION") if state is None else None
    path = Path(given).expanduser() if given else connection_file(state or state_dir())
    connection = load_connection(path)
    if not is_alive(connection):
        raise MynaError(
            "unreachable",
            f"The daemon (process {connection.pid}) is gone without a goodbye; start one with `myna up`.",
            path=str(path),
            pid=connection.pid,
            stale=True,
        )
    return connection


def is_alive(connection: Connection) -> bool:
    """Whether the file's process still runs, and is that very process; true for another machine's."""
    if connection.pid is None:
        return True
    if not is_running(connection.pid):
        return False
    now = started_at(connection.pid)
    return now is None or connection.started is None or now == connection.started
