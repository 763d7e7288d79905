"""Server and client over real sockets: round trips, errors, limits, and those who misbehave."""

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from myna.control import codec, contract, keys
from myna.control.client import Client, Event
from myna.control.connection import Connection, default_endpoints, ipc_endpoints
from myna.control.errors import MynaError
from myna.daemon.wire.deferred import Deferred
from myna.daemon.wire.events import Events
from myna.daemon.wire.server import HARD_LIMIT_BYTES, Server

from .conftest import WAIT_S, Desk, announce


def ask(raw: "zmq.Socket[bytes]", frames: list[bytes]) -> tuple[Any, Any]:
    """Header and body of the answer to raw frames."""
    raw.send_multipart(frames)
    answer = raw.recv_multipart()
    assert answer[0] == contract.MAGIC
    return codec.unpack(answer[1]), codec.unpack(answer[2])


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.005)


# --- round trips ----------------------------------------------------------------------------------------


def test_hello_tells_who_is_there(client: Client, server: Server, state: Path) -> None:
    reply = client.hello()
    assert reply.pid == os.getpid()
    assert reply.events == server.events_endpoint
    assert reply.state_dir == str(state)


def test_a_typed_call_returns_its_message(client: Client) -> None:
    reply = client.call("status", contract.Empty(), contract.StatusReply)
    assert reply.sessions[0].state == "running"
    with pytest.raises(TypeError):
        client.call("status", contract.Hello())
    with pytest.raises(TypeError):
        client.call("status", reply=contract.Empty)


def test_a_handlers_refusal_arrives_whole(client: Client) -> None:
    with pytest.raises(MynaError, match="no voice `x`") as caught:
        client.call("voices.show", contract.VoiceRef(voice="x"))
    assert (caught.value.code, caught.value.facts) == ("not_found", {"voice": "x"})


def test_a_bug_is_logged_here_and_kept_from_the_client(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(MynaError) as caught:
        client.call("traces")
    assert caught.value.code == "internal"
    assert "secret" not in caught.value.message
    assert "secret detail" in caplog.text
    assert client.call("status", contract.Empty(), contract.StatusReply).version == "0"


def test_a_reply_of_the_wrong_type_is_a_bug(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL), pytest.raises(MynaError) as caught:
        client.call("models.list")
    assert caught.value.code == "internal"


def test_a_reply_over_the_limit_is_told(client: Client) -> None:
    with pytest.raises(MynaError) as caught:
        client.call("voices.list")
    assert caught.value.code == "too_large"


def test_a_method_without_handler_is_refused(client: Client) -> None:
    with pytest.raises(MynaError) as caught:
        client.call("memory.flush")
    assert caught.value.code == "refused"


def test_a_deferred_answer_holds_up_nobody(server: Server, client: Client, desk: Desk) -> None:
    got: list[contract.SessionStatus] = []

    def start() -> None:
        with Client() as other:
            got.append(other.call("live.start", contract.LiveStart(), contract.SessionStatus))

    waiting = threading.Thread(target=start)
    waiting.start()
    (deferred,) = desk.wait_for_starts(1)
    assert client.call("status", contract.Empty(), contract.StatusReply).pid == os.getpid()
    assert deferred.resolve(desk.session())
    assert not deferred.fail(RuntimeError("too late"))
    waiting.join(WAIT_S)
    assert got[0].state == "running"


def test_a_deferred_failure_arrives(server: Server, client: Client, desk: Desk) -> None:
    threading.Thread(
        target=lambda: desk.wait_for_starts(1)[0].fail(MynaError("device_unavailable", "gone", device="mic"))
    ).start()
    with pytest.raises(MynaError) as caught:
        client.call("live.start")
    assert (caught.value.code, caught.value.facts) == ("device_unavailable", {"device": "mic"})


def test_an_answer_that_never_comes_is_given_up(state: Path, desk: Desk) -> None:
    endpoint, events = ipc_endpoints(state)
    with Server(endpoint, desk.table(), version="0", state_dir=state, events=events, answer_within_s=0.05) as server:
        announce(server, state)
        with Client() as client, pytest.raises(MynaError) as caught:
            client.call("live.start")
        assert caught.value.code == "timed_out"
        assert desk.starts[0].resolve(desk.session())  # too late, and harmless
        with Client() as client:
            assert client.hello().version == "0"


def test_a_handler_that_is_stuck_reads_as_timed_out_not_as_dead(state: Path) -> None:
    free = threading.Event()

    def stuck(_: contract.Empty) -> contract.TracesReply:
        free.wait(WAIT_S)
        return contract.TracesReply(traces=())

    endpoint, events = ipc_endpoints(state)
    with Server(endpoint, {"traces": stuck}, version="0", state_dir=state, events=events) as server:
        announce(server, state)
        with Client() as client:
            with pytest.raises(MynaError) as caught:
                client.call("traces", timeout_s=0.1)
            assert caught.value.code == "timed_out"
            free.set()
            reply = client.call("traces", contract.Empty(), contract.TracesReply)
            assert reply.traces == ()


def test_handlers_can_run_in_the_callers_loop(state: Path, desk: Desk) -> None:
    thunks: list[Callable[[], None]] = []
    endpoint, events = ipc_endpoints(state)
    server = Server(endpoint, desk.table(), version="0", state_dir=state, events=events, run=thunks.append)
    with server:
        announce(server, state)
        got: list[contract.StatusReply] = []

        def call() -> None:
            with Client() as client:
                got.append(client.call("status", contract.Empty(), contract.StatusReply))

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: bool(thunks))
        thunks.pop()()
        thread.join(WAIT_S)
        assert got


# --- malformed and hostile ------------------------------------------------------------------------------


def test_unknown_method_gets_a_hint_and_its_id(raw: "zmq.Socket[bytes]") -> None:
    frames = codec.encode_request(9, "statos", contract.Empty())
    header, body = ask(raw, frames)
    assert header == {"id": 9, "ok": False, "protocol": 1}
    assert body["code"] == "bad_request"
    assert "did you mean `status`?" in body["message"]


def test_every_problem_of_a_request_comes_back(raw: "zmq.Socket[bytes]") -> None:
    head = codec.encode_request(1, "live.start", contract.LiveStart())[:2]
    _, body = ask(raw, [*head, msgspec.msgpack.encode({"voic": "a", "wait": 1, "bypass": None})])
    assert {each["field"] for each in body["facts"]["problems"]} == {"voic", "wait", "bypass"}


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([b"x"], "bad_request"),
        ([b"MYNA1", b"\x80", b"\x80"], "bad_request"),
        ([b"MYNA1", b"\xc1", b"\x80"], "bad_request"),
        ([b"MYNA1", b"\x91" * 10_000, b"\x80"], "bad_request"),
        ([b"MYNA7", b"\x80", b"\x80"], "version_mismatch"),
        ([b"MYNA1"] + [b""] * 500, "bad_request"),
        ([b"MYNA1", b"\x80" * (1 << 20) + b"\x80", b"\x80"], "too_large"),
    ],
)
def test_malformed_frames_get_a_typed_error(
    raw: "zmq.Socket[bytes]", client: Client, frames: list[bytes], code: str
) -> None:
    header, body = ask(raw, frames)
    assert (header["ok"], body["code"]) == (False, code)
    assert client.hello().version == "0"


def test_an_oversized_body_is_too_large(raw: "zmq.Socket[bytes]") -> None:
    frames = codec.encode_request(4, "status", contract.Empty())
    header, body = ask(raw, [*frames[:2], bytes(contract.MAX_MESSAGE_BYTES + 1)])
    assert (header["id"], body["code"]) == (4, "too_large")


def test_beyond_the_hard_limit_the_connection_ends_and_others_go_on(raw: "zmq.Socket[bytes]", client: Client) -> None:
    raw.send_multipart([b"MYNA1", bytes(HARD_LIMIT_BYTES + 1), b""])
    for _ in range(3):
        assert client.call("status", contract.Empty(), contract.StatusReply).version == "0"


def test_another_protocol_in_hello_is_a_mismatch(raw: "zmq.Socket[bytes]") -> None:
    _, body = ask(raw, codec.encode_request(1, "hello", contract.Hello(protocol=2)))
    assert body["code"] == "version_mismatch"
    assert body["facts"] == {"protocol": 1, "theirs": 2}


def test_a_req_socket_is_served_too(server: Server) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    req = context.socket(zmq.REQ)
    req.setsockopt(zmq.RCVTIMEO, int(1000 * WAIT_S))
    req.connect(server.endpoint)
    header, _ = ask(req, codec.encode_request(3, "status", contract.Empty()))
    assert header["ok"]
    context.destroy(linger=0)


def test_the_33rd_request_in_flight_is_busy(raw: "zmq.Socket[bytes]", client: Client, desk: Desk) -> None:
    for number in range(contract.MAX_IN_FLIGHT + 1):
        raw.send_multipart(codec.encode_request(number, "live.start", contract.LiveStart()))
    header, body = codec.unpack((answer := raw.recv_multipart())[1]), codec.unpack(answer[2])
    assert isinstance(header, dict)
    assert isinstance(body, dict)
    assert (header["id"], body["code"]) == (contract.MAX_IN_FLIGHT, "busy")
    assert client.hello().version == "0"  # another client has its own count
    for deferred in desk.wait_for_starts(contract.MAX_IN_FLIGHT):
        deferred.resolve(desk.session())
    ids = set()
    for _ in range(contract.MAX_IN_FLIGHT):
        header, _ = (codec.unpack(each) for each in raw.recv_multipart()[1:])
        assert isinstance(header, dict)
        ids.add(header["id"])
    assert ids == set(range(contract.MAX_IN_FLIGHT))
    header, _ = ask(raw, codec.encode_request(99, "status", contract.Empty()))
    assert header["ok"]  # the places are free again


def test_a_client_that_never_reads_holds_up_nobody(raw: "zmq.Socket[bytes]", client: Client) -> None:
    frames = codec.encode_request(1, "status", contract.Empty())
    raw.setsockopt(zmq.SNDTIMEO, 100)
    sent = 0
    try:
        while sent < 20_000:
            raw.send_multipart(frames)
            sent += 1
    except zmq.Again:  # its own queue is full: the server takes no more from it for now
        pass
    assert sent > 1000
    assert client.call("status", contract.Empty(), contract.StatusReply).version == "0"


# --- events ---------------------------------------------------------------------------------------------


def take(events: Any, count: int) -> list[Event]:
    """So many events; fails when nothing comes."""
    found = []
    while len(found) < count:
        event = next(events)
        assert event is not None, "no event came"
        found.append(event)
    return found


def test_events_arrive_typed_numbered_and_by_topic(server: Server, client: Client) -> None:
    events = client.events(("log",), timeout_s=WAIT_S)
    server.publish("live.state", contract.SessionStatus(session="main", state="running"))
    for number in range(3):
        server.publish("log", contract.LogLine(level="info", message=str(number)))
    found = take(events, 3)
    assert [each.message.message for each in found] == ["0", "1", "2"]
    assert [each.lost for each in found] == [0, 0, 0]
    assert [each.sequence for each in found] == [1, 2, 3]
    events.close()


def test_events_published_from_many_threads_all_arrive(server: Server, client: Client) -> None:
    events = client.events(("log",), timeout_s=WAIT_S)
    threads = [
        threading.Thread(
            target=lambda: [server.publish("log", contract.LogLine(level="info", message="m")) for _ in range(50)]
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    found = take(events, 200)
    for thread in threads:
        thread.join(WAIT_S)
    assert [each.sequence for each in found] == list(range(1, 201))
    events.close()


def test_a_slow_subscriber_loses_events_and_sees_how_many(server: Server, client: Client) -> None:
    events = client.events(("log",), timeout_s=0.3)
    text = "x" * 4000
    count = 20_000
    for number in range(count):
        server.publish("log", contract.LogLine(level="info", message=text))
        if number % 1000 == 0:
            assert client.hello().version == "0"  # nobody waits for the slow one
    taken = lost = 0
    while (event := next(events)) is not None:
        taken += 1
        lost += event.lost
    server.publish("log", contract.LogLine(level="info", message="last"))
    event = next(events)
    assert event is not None
    assert event.sequence == count + 1
    assert event.lost + lost + taken == count
    assert event.lost + lost > 0
    events.close()


def test_only_the_latest_meters_wait() -> None:
    events = Events(contract.EVENT_TYPES)
    for number in range(100):
        events.publish(
            "live.meters",
            contract.Meters(session="main", input_db=-float(number), output_db=None, load=None, xruns=0),
        )
    with zmq.Context() as context, context.socket(zmq.PAIR) as near, context.socket(zmq.PAIR) as far:
        far.bind("inproc://events")
        near.connect("inproc://events")
        events.send(near)
        topic, sequence, _ = far.recv_multipart(zmq.NOBLOCK)
        assert (topic, int.from_bytes(sequence, "big")) == (b"live.meters", 100)
        with pytest.raises(zmq.Again):
            far.recv_multipart(zmq.NOBLOCK)
    with pytest.raises(ValueError, match="no event"):
        events.publish("live.meters", contract.Empty())
    with pytest.raises(ValueError, match="no event"):
        events.publish("nothing", contract.Empty())


def test_an_unknown_topic_gets_a_hint(client: Client) -> None:
    with pytest.raises(MynaError, match=r"did you mean `live\.state`"):
        client.events(("live.stat",))


def test_a_restarted_server_is_found_again(state: Path, desk: Desk) -> None:
    endpoint, published = ipc_endpoints(state)

    def serve() -> Server:
        server = Server(endpoint, desk.table(), version="0", state_dir=state, events=published)
        server.start()
        announce(server, state)
        return server

    first = serve()
    with Client() as client:
        events = client.events(("log",), timeout_s=0.05)
        client.hello()
        first.close()
        with pytest.raises(MynaError) as caught:
            client.call("status", timeout_s=0.3)
        assert caught.value.code == "unreachable"
        second = serve()
        assert client.hello().version == "0"
        deadline = time.monotonic() + WAIT_S
        event = None
        while event is None and time.monotonic() < deadline:
            second.publish("log", contract.LogLine(level="info", message="back"))
            event = next(events)
        assert event is not None
        assert event.reconnected
        events.close()
        second.close()


def test_a_daemon_that_dies_while_it_is_asked_is_unreachable_at_once(state: Path, desk: Desk) -> None:
    """The peer is a bare socket that takes the request and closes."""
    endpoint, _ = ipc_endpoints(state)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    router.bind(endpoint)

    def die() -> None:
        router.recv_multipart()
        router.close()

    thread = threading.Thread(target=die)
    thread.start()
    with Client(endpoint) as client, pytest.raises(MynaError) as caught:
        client.call("live.start", timeout_s=600.0)
    assert caught.value.code == "unreachable"
    thread.join(WAIT_S)
    context.term()


# --- endpoints ------------------------------------------------------------------------------------------


def test_the_default_endpoint_needs_no_asking(state: Path, desk: Desk) -> None:
    endpoint, events = default_endpoints(state)
    with Server(endpoint, desk.table(), version="0", state_dir=state, events=events) as server:
        announce(server, state)
        with Client() as client:
            assert client.hello().version == "0"


def test_the_socket_is_private(server: Server) -> None:
    for endpoint in (server.endpoint, server.events_endpoint):
        path = Path(endpoint.removeprefix("ipc://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_sockets_are_removed_at_the_end(state: Path, desk: Desk) -> None:
    endpoint, events = ipc_endpoints(state)
    with Server(endpoint, desk.table(), version="0", state_dir=state, events=events):
        assert Path(endpoint.removeprefix("ipc://")).exists()
    assert not Path(endpoint.removeprefix("ipc://")).exists()


def test_a_second_server_does_not_steal_the_socket(server: Server, client: Client, state: Path, desk: Desk) -> None:
    second = Server(server.endpoint, desk.table(), version="1", state_dir=state, events=server.events_endpoint)
    with pytest.raises(MynaError) as caught:
        second.start()
    assert caught.value.code == "already_running"
    assert client.hello().version == "0"


def test_a_stale_socket_is_replaced(state: Path, desk: Desk) -> None:
    endpoint, events = ipc_endpoints(state)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(endpoint.removeprefix("ipc://"))
    with Server(endpoint, desk.table(), version="0", state_dir=state, events=events) as server:
        announce(server, state)
        with Client() as client:
            assert client.hello().version == "0"


def test_a_port_in_use_is_busy(state: Path, desk: Desk) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MynaError) as caught:
            Server(f"tcp://127.0.0.1:{port}", desk.table(), version="0", state_dir=state).start()
    assert caught.value.code == "busy"
    assert "--listen" in caught.value.message


@pytest.mark.parametrize(
    "endpoint", ["", "udp://x", "tcp://", "tcp://host", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:port", "ipc://"]
)
def test_a_bad_endpoint_is_a_config_error(state: Path, desk: Desk, endpoint: str) -> None:
    with pytest.raises(MynaError) as caught:
        Server(endpoint, desk.table(), version="0", state_dir=state).start()
    assert caught.value.code == "config_invalid"


def test_an_address_of_another_machine_is_a_config_error(state: Path, desk: Desk) -> None:
    keys.create(state, "studio")
    with pytest.raises(MynaError) as caught:
        Server("tcp://192.0.2.1:*", desk.table(), version="0", state_dir=state).start()
    assert caught.value.code == "config_invalid"


# --- CURVE ----------------------------------------------------------------------------------------------


def reach(server: Server, pair: keys.KeyPair, server_key: str | None = None) -> Connection:
    return Connection(
        endpoint=server.endpoint,
        events="",
        server_key=server_key or server.server_key,
        client_key=pair.public,
        client_secret=pair.secret,
    )


def test_beyond_loopback_needs_a_client_key(state: Path, desk: Desk) -> None:
    keys.local_keys(state)
    server = Server("tcp://0.0.0.0:*", desk.table(), version="0", state_dir=state)
    with pytest.raises(MynaError, match="myna keys create") as caught:
        server.start()
    assert caught.value.code == "not_allowed"
    pair = keys.create(state, "studio")
    with server:
        connection = reach(server, pair)
        local = msgspec.structs.replace(connection, endpoint=connection.endpoint.replace("0.0.0.0", "127.0.0.1"))
        with Client(local) as client:
            assert client.hello().version == "0"
            events = client.events(("log",), timeout_s=WAIT_S)
            server.publish("log", contract.LogLine(level="info", message="hi"))
            assert take(events, 1)[0].message.message == "hi"
            events.close()


def test_the_own_user_gets_in_by_the_connection_file(state: Path, desk: Desk) -> None:
    keys.create(state, "studio")
    for endpoint in ("tcp://127.0.0.1:*", "tcp://0.0.0.0:0"):
        with Server(endpoint, desk.table(), version="0", state_dir=state) as server:
            announce(server, state)
            with Client() as client:
                assert client.hello().pid == os.getpid()
                events = client.events(("log",), timeout_s=WAIT_S)
                server.publish("log", contract.LogLine(level="info", message="hi"))
                assert take(events, 1)[0].message.message == "hi"
                events.close()


def test_an_unknown_key_gets_nothing(state: Path, desk: Desk) -> None:
    with Server("tcp://127.0.0.1:*", desk.table(), version="0", state_dir=state) as server:
        stranger = keys.new_pair()
        with Client(reach(server, stranger)) as client, pytest.raises(MynaError) as caught:
            client.hello()
        assert caught.value.code == "not_allowed"
        with Client(reach(server, keys.local_keys(state))) as client:
            assert client.hello().version == "0"
        other = keys.new_pair().public
        with Client(reach(server, keys.local_keys(state), other)) as client, pytest.raises(MynaError) as caught:
            client.hello()
        assert caught.value.code in ("not_allowed", "unreachable")
        bare = zmq.Context()
        sub = bare.socket(zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, b"")
        sub.connect(server.events_endpoint)
        server.publish("log", contract.LogLine(level="info", message="secret"))
        assert not sub.poll(200)
        bare.destroy(linger=0)
    assert desk.calls == []


def test_a_removed_key_counts_at_once(state: Path, desk: Desk) -> None:
    with Server("tcp://127.0.0.1:*", desk.table(), version="0", state_dir=state) as server:
        pair = keys.create(state, "deck")
        with Client(reach(server, pair)) as client:
            assert client.hello().version == "0"
        keys.remove(state, "deck")
        with Client(reach(server, pair)) as client, pytest.raises(MynaError) as caught:
            client.hello()
        assert caught.value.code == "not_allowed"


# --- the end --------------------------------------------------------------------------------------------


def test_what_waits_at_the_end_is_told(state: Path, desk: Desk) -> None:
    endpoint, events = ipc_endpoints(state)
    server = Server(endpoint, desk.table(), version="0", state_dir=state, events=events)
    server.start()
    announce(server, state)
    got: list[MynaError] = []

    def start() -> None:
        with Client() as client:
            try:
                client.call("live.start")
            except MynaError as error:
                got.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    desk.wait_for_starts(1)
    server.close()
    thread.join(WAIT_S)
    assert got[0].code == "refused"
    server.close()


def test_deferred_tells_each_listener_once() -> None:
    deferred = Deferred()
    heard: list[object] = []
    deferred.on_done(heard.append)
    assert not deferred.done
    message = contract.Empty()
    deferred.resolve(message)
    deferred.on_done(heard.append)
    assert heard == [message, message]
    assert deferred.done
