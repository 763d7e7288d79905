"""Where daemon and client meet: directories, the connection file, processes."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from myna.control import connection
from myna.control.client import Client
from myna.control.connection import Connection
from myna.control.errors import MynaError
from myna.control.process import is_running, started_at

HERE = Connection(endpoint="ipc:///nowhere", events="", pid=os.getpid(), started=started_at(os.getpid()))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def ended_process() -> int:
    """The id of a process that was, and is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_the_file_is_private_and_whole(state: Path) -> None:
    path = connection.write_connection(state, HERE)
    assert (mode(path), mode(state)) == (0o600, 0o700)
    assert connection.read_connection() == HERE
    assert [each.name for each in state.iterdir()] == [connection.FILE_NAME]


def test_without_a_file_no_daemon_runs(state: Path) -> None:
    with pytest.raises(MynaError, match="myna up") as caught:
        connection.read_connection()
    assert caught.value.code == "unreachable"


def test_a_file_of_a_dead_process_is_stale(state: Path) -> None:
    connection.write_connection(state, Connection(endpoint="ipc:///x", events="", pid=ended_process()))
    with pytest.raises(MynaError) as caught:
        connection.read_connection()
    assert caught.value.code == "unreachable"
    assert caught.value.facts["stale"] is True


@pytest.mark.skipif(started_at(os.getpid()) is None, reason="this platform does not tell when a process began")
def test_a_reused_process_id_is_stale(state: Path) -> None:
    connection.write_connection(
        state, Connection(endpoint="ipc:///x", events="", pid=os.getpid(), started="another boot:1")
    )
    with pytest.raises(MynaError) as caught, Client() as client:
        client.hello()
    assert caught.value.code == "unreachable"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"endpoint": 3}', b"\xff\xfe", b'{"endpoint": "x"}'])
def test_a_damaged_file_says_so(state: Path, data: bytes) -> None:
    connection.write_private(connection.connection_file(state), data)
    with pytest.raises(MynaError) as caught:
        connection.read_connection()
    assert caught.value.code == "config_invalid"


def test_a_file_elsewhere_is_named_by_the_environment(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = state / "remote.json"
    connection.write_private(remote, b'{"endpoint": "tcp://studio:5555", "events": ""}')
    monkeypatch.setenv("MYNA_CONNECTION", str(remote))
    assert connection.read_connection().endpoint == "tcp://studio:5555"


def test_a_file_is_mended_but_not_that_of_another_that_lives(state: Path) -> None:
    path = connection.connection_file(state)
    assert connection.mend_connection(state, HERE)
    assert not connection.mend_connection(state, HERE)
    path.write_bytes(b"junk")
    assert connection.mend_connection(state, HERE)
    other = Connection(endpoint="ipc:///other", events="", pid=os.getppid(), started=started_at(os.getppid()))
    connection.write_connection(state, other)
    assert not connection.mend_connection(state, HERE)
    assert connection.load_connection(path) == other
    gone = Connection(endpoint="ipc:///gone", events="", pid=2**22 + 1)
    connection.write_connection(state, gone)
    assert connection.mend_connection(state, HERE)
    assert connection.load_connection(path) == HERE


def test_only_its_own_file_is_removed(state: Path) -> None:
    path = connection.write_connection(state, HERE)
    connection.remove_connection(state, os.getpid() + 1)
    assert path.exists()
    connection.remove_connection(state, os.getpid())
    assert not path.exists()
    connection.remove_connection(state, os.getpid())


def test_an_open_directory_is_closed(state: Path) -> None:
    state.chmod(0o755)
    connection.private_dir(state)
    assert mode(state) == 0o700


def test_a_file_in_the_way_is_an_error(state: Path) -> None:
    (state / "file").write_text("")
    with pytest.raises(MynaError) as caught:
        connection.private_dir(state / "file")
    assert caught.value.code == "state_unwritable"
    with pytest.raises(MynaError) as caught:
        connection.private_dir(state / "file" / "below")
    assert caught.value.code == "state_unwritable"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_directory_is_refused(state: Path) -> None:
    foreign = state / "foreign"
    foreign.mkdir(mode=0o700)
    os.chown(foreign, 12345, 12345)
    link = state / "link"
    link.symlink_to(foreign)
    for path in (foreign, link):
        with pytest.raises(MynaError) as caught:
            connection.private_dir(path)
        assert (caught.value.code, caught.value.facts["owner"]) == ("not_allowed", 12345)
    file = connection.write_connection(state, HERE)
    os.chown(file, 12345, 12345)
    with pytest.raises(MynaError) as caught:
        connection.read_connection()
    assert caught.value.code == "not_allowed"


def test_socket_paths_are_short_private_and_apart(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, events = connection.ipc_endpoints(state)
    other, _ = connection.ipc_endpoints(state / "other")
    assert len({endpoint, events, other}) == 3
    with tempfile.TemporaryDirectory(prefix="mt") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.setenv("MYNA_RUNTIME_DIR", str(state / ("long" * 30)))
        endpoint, _ = connection.ipc_endpoints(state)
        path = Path(endpoint.removeprefix("ipc://"))
        assert len(os.fsencode(path)) < connection.MAX_IPC_BYTES
        assert path.is_relative_to(short)
        assert mode(path.parent) == 0o700


def test_an_asked_for_runtime_directory_is_never_passed_over(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (state / "file").write_text("")
    monkeypatch.setenv("MYNA_RUNTIME_DIR", str(state / "file"))
    with pytest.raises(MynaError) as caught:
        connection.ipc_endpoints(state)
    assert caught.value.code == "state_unwritable"


def test_a_full_or_missing_place_is_unwritable(state: Path) -> None:
    with pytest.raises(MynaError) as caught:
        connection.write_private(state / "gone" / "x", b"")
    assert caught.value.code == "state_unwritable"
    (state / "dir").mkdir()
    with pytest.raises(MynaError):
        connection.write_private(state / "dir", b"")
    assert sorted(each.name for each in state.iterdir()) == ["dir"]


def test_processes_are_told_apart() -> None:
    assert is_running(os.getpid())
    assert not is_running(ended_process())
    assert not is_running(0)
    assert not is_running(-1)
    assert started_at(os.getpid()) == started_at(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        if started_at(os.getpid()) is not None:
            assert started_at(child.pid) != started_at(os.getpid())
        child.kill()
    assert started_at(ended_process()) is None
