"""Keys: made once, private, and only well-formed ones let in."""

import stat
from pathlib import Path

import pytest

from myna.control import keys
from myna.control.errors import MynaError


def test_the_servers_pair_is_made_once_and_private(state: Path) -> None:
    pair = keys.server_keys(state)
    assert keys.server_keys(state) == pair
    files = [path for path in (state / "keys").rglob("*") if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600]


def test_clients_come_and_go(state: Path) -> None:
    assert keys.clients(state) == {}
    pair = keys.create(state, "stream-deck")
    assert keys.clients(state) == {"stream-deck": pair.public}
    assert keys.is_let_in(state, pair.public)
    keys.remove(state, "stream-deck")
    assert not keys.is_let_in(state, pair.public)
    with pytest.raises(MynaError) as caught:
        keys.remove(state, "stream-deck")
    assert caught.value.code == "not_found"


def test_the_secret_of_a_client_is_kept_nowhere(state: Path) -> None:
    pair = keys.create(state, "deck")
    assert all(pair.secret.encode() not in path.read_bytes() for path in state.rglob("*") if path.is_file())


def test_a_name_is_not_taken_twice(state: Path) -> None:
    keys.create(state, "deck")
    with pytest.raises(MynaError) as caught:
        keys.create(state, "deck")
    assert caught.value.code == "refused"


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "-x", "a b", "x" * 65, "ü"])
def test_bad_names_are_refused(state: Path, name: str) -> None:
    for call in (lambda: keys.create(state, name), lambda: keys.remove(state, name)):
        with pytest.raises(MynaError) as caught:
            call()
        assert caught.value.code == "bad_request"


@pytest.mark.parametrize("public", ["", "x", "é" * 40, " " * 40, "#" * 39, "~" * 40, '"' * 40])
def test_bad_keys_are_refused(state: Path, public: str) -> None:
    with pytest.raises(MynaError) as caught:
        keys.add(state, "deck", public)
    assert caught.value.code == "bad_request"


def test_a_damaged_key_file_names_its_cure(state: Path) -> None:
    keys.server_keys(state)
    (state / "keys" / "server.json").write_text("{}")
    with pytest.raises(MynaError, match="remove it") as caught:
        keys.server_keys(state)
    assert caught.value.code == "config_invalid"
