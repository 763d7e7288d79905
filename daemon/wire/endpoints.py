"""Where a server is reached: endpoints read, bound, and told to clients."""

import ipaddress
import os
import re
import socket

import zmq

from myna.control.errors import MynaError


def split(endpoint: str) -> tuple[str, str]:
    """Scheme and place of an endpoint. MynaError("config_invalid") if it is none that this platform has."""
    scheme, separator, place = endpoint.partition("://")
    if not separator or scheme not in ("ipc", "tcp") or not place:
        raise MynaError(
            "config_invalid",
            f"`{endpoint}` is no endpoint: ipc://PATH or tcp://HOST:PORT is expected.",
            endpoint=endpoint,
        )
    if scheme == "ipc" and (os.name == "nt" or not zmq.has("ipc")):
        raise MynaError(
            "config_invalid", f"This platform has no ipc; listen on tcp://127.0.0.1:* instead of {endpoint}."
        )
    port = place.rpartition(":")[2]
    named = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^:\s/]+):(\*|\d{1,5})", place)
    if scheme == "tcp" and (named is None or (port != "*" and int(port) > 65535)):
        raise MynaError(
            "config_invalid",
            f"`{endpoint}` names no host and port: tcp://127.0.0.1:5555 is an example, port * means any free one.",
            endpoint=endpoint,
        )
    return scheme, place


def events_beside(endpoint: str) -> str:
    """The events' endpoint for a requests' endpoint: another name, or the next port."""
    scheme, place = split(endpoint)
    if scheme == "ipc":
        return f"ipc://{place.removesuffix('.control')}.events"
    host, _, port = place.rpartition(":")
    return f"tcp://{host}:{'*' if port in ('*', '0') else int(port) + 1}"


def from_here(endpoint: str) -> str:
    """A bound endpoint as this machine's clients connect to it: a wildcard host is no place to go."""
    for wildcard, loopback in (("tcp://0.0.0.0:", "tcp://127.0.0.1:"), ("tcp://[::]:", "tcp://[::1]:")):
        if endpoint.startswith(wildcard):
            return loopback + endpoint[len(wildcard) :]
    return endpoint


def is_loopback(place: str) -> bool:
    """Whether only this machine can reach a `HOST:PORT`."""
    host = place.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name or an interface: may be anything
        return False


def bind_ipc(bound: "zmq.Socket[bytes]", path: str) -> str:
    """Bind in a private directory. libzmq unlinks whatever is there, so a living owner is asked first."""
    endpoint = f"ipc://{path}"
    if _somebody_listens(path):
        raise MynaError(
            "already_running",
            f"Another daemon answers at {endpoint}; stop it with `myna down`, or use another --state-dir.",
            endpoint=endpoint,
        )
    try:
        bound.bind(endpoint)
        if os.name != "nt":
            os.chmod(path, 0o600)  # in a 0700 directory: nobody could come before this
    except (zmq.ZMQError, OSError) as error:
        raise _bind_error(endpoint, error) from error
    return endpoint


def bind_tcp(bound: "zmq.Socket[bytes]", endpoint: str) -> str:
    """Bind; the endpoint with its real port."""
    host, _, port = endpoint.rpartition(":")
    if port == "0":
        endpoint = f"{host}:*"
    try:
        bound.bind(endpoint.replace("//localhost:", "//127.0.0.1:"))
    except (zmq.ZMQError, OSError) as error:
        raise _bind_error(endpoint, error) from error
    return str(bound.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def _somebody_listens(path: str) -> bool:
    if not hasattr(socket, "AF_UNIX") or not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _bind_error(endpoint: str, error: zmq.ZMQError | OSError) -> MynaError:
    number = error.errno
    reason = error.strerror or str(error)
    if number == zmq.EADDRINUSE:
        return MynaError(
            "busy",
            f"{endpoint} is in use by another program; choose another port with --listen.",
            endpoint=endpoint,
        )
    if number in (1, 13):  # EPERM, EACCES
        return MynaError("not_allowed", f"{endpoint} can't be opened: {reason}.", endpoint=endpoint)
    if number in (28, 30):  # ENOSPC, EROFS
        return MynaError("state_unwritable", f"{endpoint} can't be opened: {reason}.", endpoint=endpoint)
    return MynaError(
        "config_invalid",
        f"{endpoint} can't be opened: {reason}. Listen on an address of this machine.",
        endpoint=endpoint,
    )
