"""Keys and the list of who may come in, where a server is reached by more than a private path."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from myna.control import keys
from myna.control.errors import MynaError
from myna.daemon.wire.endpoints import is_loopback, split

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

log = logging.getLogger(__name__)

_ZAP_DOMAIN = "myna"


def start_curve(
    context: "zmq.Context[zmq.Socket[bytes]]", sockets: Iterable["zmq.Socket[bytes]"], endpoint: str, state: Path
) -> tuple["ThreadAuthenticator", str]:
    """Let nobody in on sockets still to be bound but clients whose keys are on the list.

    Returns:
        What decides, to be stopped in the end, and the public key of this server.

    Raises:
        MynaError: `not_allowed` beyond loopback while no client's key is on the list.
    """
    place = split(endpoint)[1]
    if not is_loopback(place) and not (set(keys.clients(state)) - {keys.LOCAL}):
        raise MynaError(
            "not_allowed",
            f"{endpoint} can be reached from other machines, and no client key is on the list. "
            "Make one with `myna keys create NAME -o FILE`, or listen on 127.0.0.1.",
            endpoint=endpoint,
        )
    pair = keys.server_keys(state)
    keys.local_keys(state)
    from zmq.auth.thread import ThreadAuthenticator  # pulls in asyncio, which ipc does without

    auth = ThreadAuthenticator(context)
    try:
        auth.start()
        auth.configure_curve_callback(domain=_ZAP_DOMAIN, credentials_provider=_AllowList(state))
        for each in sockets:
            each.setsockopt(zmq.CURVE_SERVER, 1)
            each.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode("ascii"))
            each.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode("ascii"))
            each.setsockopt(zmq.ZAP_DOMAIN, _ZAP_DOMAIN.encode())
            each.setsockopt(zmq.HEARTBEAT_IVL, 10_000)
            each.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
            if place.startswith("["):
                each.setsockopt(zmq.IPV6, 1)
    except BaseException:
        auth.stop()
        raise
    return auth, pair.public


class _AllowList:
    """What ThreadAuthenticator asks: the list is read at each handshake, so changes count at once."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with this Z85 public key may come in."""
        try:
            return keys.is_let_in(self._state, key.decode("ascii"))
        except Exception:  # raised further it would end the authenticator's thread
            log.exception("the list of clients can't be read")
            return False
