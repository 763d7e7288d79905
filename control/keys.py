"""CURVE keys: the daemon's own pair, clients' pairs, and the list of clients that are let in."""

import contextlib
import re
from pathlib import Path

import msgspec
import zmq
from msgspec import Struct
from zmq.utils import z85

from myna.control.connection import private_dir, write_private
from myna.control.errors import MynaError

LOCAL = "local"
"""The name of the key of this machine's own user, made by the daemon; no other machine has it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyPair(Struct, frozen=True, kw_only=True):
    """A CURVE key pair, both halves in Z85 (40 characters)."""

    public: str
    secret: str


def server_keys(state: Path) -> KeyPair:
    """The daemon's key pair, made at first use. MynaError `state_unwritable`, `config_invalid`."""
    return _pair(_directory(state) / "server.json")


def local_keys(state: Path) -> KeyPair:
    """The key pair of this machine's own user, made and let in at first use."""
    pair = _pair(_directory(state) / "local.json")
    if clients(state).get(LOCAL) != pair.public:
        _let_in(state, LOCAL, pair.public)
    return pair


def clients(state: Path) -> dict[str, str]:
    """Names and public keys of the clients that are let in."""
    found: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(_list(state).glob("*.pub")):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                found[path.stem] = path.read_text().strip()
    return found


def is_let_in(state: Path, public: str) -> bool:
    """Whether a client with this public key may connect; read anew each time, so changes count at once."""
    return public in clients(state).values()


def add(state: Path, name: str, public: str) -> None:
    """Let a client in. MynaError `bad_request` for a bad name or key, `refused` if the name is taken."""
    _check_name(name)
    public = public.strip()
    try:
        whole = len(public) == 40 and len(z85.decode(public.encode("ascii"))) == 32
    except (ValueError, KeyError, UnicodeEncodeError):
        whole = False
    if not whole:
        raise MynaError(
            "bad_request",
            "That is no CURVE public key: 40 characters in Z85 are expected, as `myna keys create` prints them.",
        )
    if name in clients(state):
        raise MynaError(
            "refused",
            f"A key named `{name}` is there already; remove it first or take another name.",
            key=name,
        )
    _let_in(state, name, public)


def create(state: Path, name: str) -> KeyPair:
    """Make a key pair for a client and let it in; the secret half is kept nowhere here. Errors as `add`."""
    pair = new_pair()
    add(state, name, pair.public)
    return pair


def remove(state: Path, name: str) -> None:
    """Let a client in no more (running connections last until they close). MynaError `not_found`."""
    _check_name(name)
    try:
        (_list(state) / f"{name}.pub").unlink()
    except FileNotFoundError:
        raise MynaError("not_found", f"There is no key named `{name}`; `myna keys list` shows all.", key=name) from None
    except OSError as error:
        raise MynaError("state_unwritable", f"The key can't be removed: {error.strerror}.", key=name) from error


def new_pair() -> KeyPair:
    """A fresh key pair."""
    if not zmq.has("curve"):
        raise MynaError(
            "failed",
            "This ZeroMQ was built without CURVE, so there is no safe way over TCP; install pyzmq's "
            "own wheel (`pip install --force-reinstall pyzmq`).",
        )
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode("ascii"), secret=secret.decode("ascii"))


def _directory(state: Path) -> Path:
    return private_dir(private_dir(state) / "keys")


def _list(state: Path) -> Path:
    return state / "keys" / "clients"


def _let_in(state: Path, name: str, public: str) -> None:
    _directory(state)
    write_private(private_dir(_list(state)) / f"{name}.pub", public.encode("ascii") + b"\n")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise MynaError(
            "bad_request",
            f"`{name[:70]}` is no name for a key: letters, digits, `.`, `_` and `-`, at most 64, "
            "the first a letter or digit.",
        )


def _pair(path: Path) -> KeyPair:
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeyPair)
    except FileNotFoundError:
        pair = new_pair()
        write_private(path, msgspec.json.encode(pair))
        return pair
    except (OSError, msgspec.MsgspecError) as error:
        raise MynaError(
            "config_invalid",
            f"The key file {path} can't be used ({error}); remove it, and a new pair is made.",
            path=str(path),
        ) from error
