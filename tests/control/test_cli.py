"""The command line against a real server: results, errors, exit codes, plain lines and JSON."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import typer

from myna.control import contract, keys
from myna.control.cli import app, main, onekey
from myna.control.cli.app import COMMANDS
from myna.control.cli.delegate import delegate
from myna.control.cli.launch import start_daemon
from myna.control.client import Client
from myna.control.connection import Connection, connection_file, load_connection, write_connection
from myna.daemon.wire.server import Server

from .conftest import WAIT_S, Desk

COMMAND = [sys.executable, "-c", "import sys; from myna.control.cli import main; sys.exit(main())"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    """Exit code and the one JSON document on stdout."""
    code, out, _ = run(capsys, *arguments, "--json")
    return code, json.loads(out)


# --- help, usage, start-up ------------------------------------------------------------------------------


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from myna.control.cli import main; main(['--help']); "
        "print(sorted({'numpy','zmq','rich','msgpack','matplotlib','textual','asyncio'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"
    for name in ("up", "down", "status", "live", "convert", "doctor"):
        assert f"  {name} " in shown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, name, "--help")
    if code == 2 and "No such command" in err:
        pytest.skip(f"`{name}` is not part of this installation")
    assert code == 0
    assert "--help" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["live"],
        ["live", "bypass", "perhaps"],
        ["status", "--bogus"],
        ["convert"],
        ["live", "set", "pitch"],
        ["live", "set", "pitch=99"],
        ["live", "set", "pitc=1"],
        ["live", "start", "--period", "1"],
        ["live", "start", "--channels", "a"],
        ["unload"],
        ["jobs", "cancel"],
        ["jobs", "list", "--state", "lost"],
        ["live", "latency", "--through", "air"],
        ["keys", "create", "a/b", "-o", "x", "--endpoint", "tcp://h:1"],
    ],
)
def test_usage_errors_exit_2(server: Server, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert (out + err).strip()
    code, shown = run_json(capsys, *arguments) if len(arguments) > 1 else (2, None)
    assert code == 2
    if shown is not None:
        assert shown["ok"] is False
        assert shown["error"]["code"] == "bad_request"


def test_every_wrong_setting_is_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run_json(capsys, "live", "set", "pitc=1", "formant=99", "vad=maybe")
    assert code == 2
    found = {each["field"]: each["message"] for each in shown["error"]["facts"]["problems"]}
    assert set(found) == {"pitc", "formant", "vad"}
    assert "did you mean `pitch`?" in found["pitc"]


# --- without a daemon -----------------------------------------------------------------------------------


def test_no_daemon_exits_3_with_the_cure(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "status")
    assert (code, out) == (3, "")
    assert "myna up" in err
    code, shown = run_json(capsys, "status")
    assert code == 3
    assert shown["ok"] is False
    assert set(shown["error"]) == {"code", "message", "facts"}
    assert shown["error"]["code"] == "unreachable"


def test_a_stale_connection_file_exits_3(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    write_connection(state, Connection(endpoint="ipc:///x", events="", pid=gone.pid))
    code, shown = run_json(capsys, "live", "stop")
    assert code == 3
    assert shown["error"]["facts"]["stale"] is True


def test_down_without_a_daemon_is_no_error(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "down") == (0, {"stopped": False, "detail": "no daemon was running"})


def test_the_state_directory_can_be_named(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run_json(capsys, "--state-dir", str(state / "other"), "status")
    assert code == 3
    assert shown["error"]["facts"]["path"].startswith(str(state / "other"))


def test_a_daemon_elsewhere_is_not_started_here(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYNA_CONNECTION", str(state / "remote.json"))
    code, shown = run_json(capsys, "up")
    assert (code, shown["error"]["code"]) == (3, "unreachable")
    assert not connection_file(state).exists()
    code, shown = run_json(capsys, "--state-dir", str(state), "status")  # what is said wins
    assert shown["error"]["facts"]["path"] == str(connection_file(state))


def test_a_delegated_command_ends_as_its_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("myna.control.cli.delegate.require_daemon_package", lambda: None)
    delegate("this", [])
    assert "Beautiful is better than ugly" in capfd.readouterr().out
    with pytest.raises(typer.Exit) as caught:
        delegate("json.tool", ["no such file"])
    assert caught.value.exit_code


def test_without_the_daemons_package_the_command_to_run_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    monkeypatch.setattr("myna.control.cli.launch.find_spec", lambda name: None)
    code, shown = run_json(capsys, "up")
    assert (code, shown["error"]["code"]) == (7, "missing_asset")
    assert "pip install 'myna[daemon]'" in shown["error"]["message"]


def test_names_that_are_no_utf8_are_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    from myna.control.cli import output

    output.print_json({"name": "take\udcff"})
    output.line("take\udcff")
    assert capsys.readouterr().out == '{"name": "take\\udcff"}\ntake�\n'


def test_doctor_works_without_a_daemon(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run_json(capsys, "doctor")
    assert code == 1
    assert not shown["healthy"]
    assert {"area": "daemon", "name": "answers", "level": "error"}.items() <= shown["findings"][-1].items()


# --- with one -------------------------------------------------------------------------------------------


def test_status_tells_all(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run_json(capsys, "status")
    assert code == 0
    assert shown["sessions"][0]["state"] == "running"
    assert shown["sessions"][0]["latency"]["loopback_ms"] is None
    code, out, _ = run(capsys, "status")
    assert code == 0
    for words in ("running", "formant", "1 d 1:01:01", "loopback not measured", "25% of the block"):
        assert words in out


def test_live_set_sends_typed_values(server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = run_json(
        capsys, "live", "set", "pitch=3.5", "vad=on", "gate_db=off", "block-ms=20", "context_ms=none"
    )
    assert code == 0
    assert shown["settings"]["pitch"] == 3.5
    (_, request) = desk.calls[-1]
    assert request.values == {"pitch": 3.5, "vad": True, "gate_db": "off", "block_ms": 20, "context_ms": None}


def test_bypass_is_a_switch(server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "live", "bypass", "on")[0] == 0
    assert run(capsys, "live", "mute", "off")[0] == 0
    assert [request.on for _, request in desk.calls] == [True, False]


def test_toggle_is_the_other_of_the_two(server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert [run_json(capsys, "live", "mute", "toggle")[1]["muted"] for _ in range(3)] == [True, False, True]


KEYS = [["mute", "on"], ["bypass", "toggle"], ["set", "pitch=2"], ["voice", "deep"]]


@pytest.mark.parametrize("command", KEYS)
def test_what_is_bound_to_keys_starts_without_the_parser(server: Server, desk: Desk, command: list[str]) -> None:
    code = f"import sys; from myna.control.cli import main; main({['live', *command]!r}); print('typer' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", KEYS)
def test_both_ways_of_reading_a_command_do_the_same(
    server: Server, desk: Desk, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    plain = run_json(capsys, "live", *command)
    desk.muted = False
    assert onekey.run(["live", *command, "--consent", "--help"]) is None  # nothing but the plain form
    asked = list(desk.calls)
    typed = app.run(["live", *command, "--json"], True), json.loads(capsys.readouterr().out)
    assert typed == plain
    assert desk.calls[len(asked) :] == asked


def test_live_start_makes_file_paths_absolute(
    server: Server, desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    monkeypatch.chdir(state)
    threading.Thread(target=lambda: desk.wait_for_starts(1)[0].resolve(desk.session())).start()
    code, _, _ = run(
        capsys, "live", "start", "--input", "file:a.wav", "--output", "null", "--set", "pitch=2", "--channels", "1,2"
    )
    assert code == 0
    (_, request) = desk.calls[-1]
    assert request.devices.input == f"file:{state / 'a.wav'}"
    assert request.devices.output == "null"
    assert request.devices.input_channels == (1, 2)
    assert request.settings == {"pitch": 2}


def test_live_start_without_devices_keeps_the_last(
    server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    threading.Thread(target=lambda: desk.wait_for_starts(1)[0].resolve(desk.session())).start()
    assert run(capsys, "up", "--voice", "formant")[0] == 0
    assert desk.calls[-1][1].devices is None


def test_up_finds_the_running_daemon(server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    threading.Thread(target=lambda: desk.wait_for_starts(1)[0].resolve(desk.session())).start()
    code, shown = run_json(capsys, "up", "--bypass", "--pitch", "3")
    assert code == 0
    assert (shown["started"], shown["daemon"]["pid"], shown["session"]["state"]) == (False, os.getpid(), "running")
    assert desk.calls[-1][1].bypass
    assert desk.calls[-1][1].settings == {"pitch": 3.0}


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["voices", "show", "x"], 4, "not_found"),
        (["flush"], 5, "refused"),
        (["voices", "list"], 2, "too_large"),
        (["devices", "--test"], 8, "device_unavailable"),
        (["traces"], 1, "internal"),
    ],
)
def test_the_daemons_errors_become_exit_codes(
    server: Server, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, word: str
) -> None:
    found, shown = run_json(capsys, *arguments)
    assert (found, shown["error"]["code"]) == (code, word)
    found, _, err = run(capsys, *arguments)
    assert found == code
    assert err.startswith("myna: ")


def test_doctor_fails_with_a_finding(server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "doctor")[0] == 0
    desk.healthy = False
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert "FAIL  audio: devices: looked" in out


def test_config_reads_a_value_as_its_default_is(server: Server, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "config", "set", "jobs.micro_batch=off", "compute.device=cuda:0")[0] == 0
    assert desk.calls[-1][1].values == {"jobs.micro_batch": False, "compute.device": "cuda:0"}
    code, shown = run_json(capsys, "config", "set", "compute.devise=cpu")
    assert code == 2
    assert "did you mean `compute.device`?" in shown["error"]["message"]
    code, out, _ = run(capsys, "config", "list")
    assert out.splitlines()[0].split("\t") == ["setting", "value", "default", "from"]
    assert "jobs.micro_batch\tyes\tyes\tfile" in out


def test_plots_are_written(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("latency", "check"):
        target = tmp_path / f"{name}.png"
        code, shown = run_json(capsys, "live", name, "--plot", str(target))
        assert code == 0
        assert shown
        assert target.read_bytes()[:4] == b"\x89PNG"
    code, shown = run_json(capsys, "live", "check", "--plot", str(tmp_path / "gone" / "x.png"))
    assert (code, shown["error"]["code"]) == (1, "failed")
    code, out, _ = run(capsys, "live", "latency")
    assert "61.5 ms" in out
    code, out, _ = run(capsys, "live", "check")
    assert "20 ms is the smallest block that holds" in out


def test_a_plot_without_matplotlib_names_the_package(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("myna.control.cli.plots.find_spec", lambda name: None)
    code, shown = run_json(capsys, "live", "check", "--plot", "x.png")
    assert (code, shown["error"]["code"]) == (7, "missing_asset")
    assert "pip install 'myna[monitor]'" in shown["error"]["message"]


def test_names_cannot_send_escapes_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from myna.control.cli import output

    output.table(("device",), [("mic\x1b[2J\x07",)], "none")
    output.print_error(contract_error("bad\x1b]0;x\x07"), as_json=False)
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x07" not in out + err


def contract_error(message: str) -> Any:
    from myna.control.errors import MynaError

    return MynaError("failed", message)


# --- conversion -----------------------------------------------------------------------------------------


def recordings(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"RIFF")


def test_convert_mirrors_a_tree_and_waits(
    server: Server, desk: Desk, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recordings(tmp_path / "in", "a.wav", "deep/b.mp3", "deep/c.m4a", "notes.txt")
    code, shown = run_json(
        capsys, "convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--pitch", "4", "--set", "protect=0.2"
    )
    assert code == 0
    assert sorted(Path(job["output"]).relative_to(tmp_path).as_posix() for job in shown["jobs"]) == [
        "out/a.wav",
        "out/deep/b.mp3",
        "out/deep/c.wav",
    ]
    code, out, _ = run(capsys, "convert", str(tmp_path / "in" / "a.wav"), "-o", str(tmp_path / "x.flac"))
    assert (code, out.strip()) == (0, str(tmp_path / "x.flac"))


def test_convert_tells_failures_and_exits_1(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recordings(tmp_path / "in", "good.wav", "bad.wav")
    code, out, err = run(capsys, "convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"))
    assert code == 1
    assert out.strip() == str(tmp_path / "out" / "good.wav")
    assert "bad.wav: it is no sound file" in err
    code, shown = run_json(capsys, "convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"))
    assert (code, shown["error"]["code"], shown["error"]["facts"]["done"]) == (1, "failed", 1)


def test_convert_submits_in_chunks_and_waits_for_room(
    server: Server, desk: Desk, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recordings(tmp_path / "in", *(f"{number}.wav" for number in range(1100)))
    desk.busy_once = True
    code, shown = run_json(capsys, "convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--no-wait")
    assert code == 0
    assert len(set(shown["ids"])) == 1100
    assert desk.submits == 3


@pytest.mark.parametrize("missing", ["nothing.wav", "*.wav", "empty"])
def test_convert_of_nothing_is_not_found(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path, missing: str
) -> None:
    (tmp_path / "empty").mkdir()
    code, shown = run_json(capsys, "convert", str(tmp_path / missing), "-o", str(tmp_path / "out"))
    assert (code, shown["error"]["code"]) == (4, "not_found")


def heed_ctrl_c() -> None:
    """In a child: a shell's background jobs, and what they start, ignore Ctrl-C; the suite may be one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_leaves_the_jobs_running(server: Server, desk: Desk, tmp_path: Path) -> None:
    recordings(tmp_path / "in", "a.wav")
    asked = threading.Event()

    def running(request: contract.JobRef) -> contract.JobInfo:
        asked.set()
        return contract.JobInfo(id=request.id, kind="convert", state="running", voice="v", input="a", output="b")

    server._handlers["jobs.show"] = running
    with subprocess.Popen(
        [*COMMAND, "convert", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        assert asked.wait(WAIT_S)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert json.loads(out)["error"]["code"] == "interrupted"


def test_watching_ends_with_ctrl_c(server: Server, state: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "status", "--watch", "--json", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["version"] == "0"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 130


# --- keys -----------------------------------------------------------------------------------------------


def test_keys_go_round(state: Path, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    file = state / "deck.json"
    code, shown = run_json(capsys, "keys", "create", "deck", "-o", str(file), "--endpoint", "tcp://studio:5555")
    assert (code, shown["endpoint"]) == (0, "tcp://studio:5555")
    assert load_connection(file).client_key == shown["public"]
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert run_json(capsys, "keys", "list")[1] == {"clients": [{"name": "deck", "public": shown["public"]}]}
    assert run_json(capsys, "keys", "show")[1] == {"server_key": keys.server_keys(state).public}
    assert run_json(capsys, "keys", "create", "more", "-o", str(file), "--endpoint", "tcp://h:1")[0] == 5
    assert run(capsys, "keys", "add", "pad", keys.new_pair().public)[0] == 0
    assert run(capsys, "keys", "remove", "deck")[0] == 0
    assert run(capsys, "keys", "remove", "deck")[0] == 4
    assert set(keys.clients(state)) == {"pad"}


def test_a_client_elsewhere_connects_with_its_file(
    state: Path, desk: Desk, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Server("tcp://127.0.0.1:*", desk.table(), version="0", state_dir=state) as server:
        file = tmp_path / "deck.json"
        assert run(capsys, "keys", "create", "deck", "-o", str(file), "--endpoint", server.endpoint)[0] == 0
        code, shown = run_json(capsys, "--connection", str(file), "status")
        assert (code, shown["version"]) == (0, "0")
        assert run(capsys, "keys", "remove", "deck")[0] == 0
        code, shown = run_json(capsys, "--connection", str(file), "status")
        assert (code, shown["error"]["code"]) == (6, "not_allowed")


# --- starting and ending a daemon -----------------------------------------------------------------------


@pytest.fixture
def pretend_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`python -m myna.daemon` replaced by a script of the test's, through an interpreter that runs it."""
    script = tmp_path / "daemon.py"
    shell = tmp_path / "python"
    shell.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {script} "$@"\n')
    shell.chmod(0o700)
    monkeypatch.setattr("myna.control.cli.launch.sys.executable", str(shell))
    monkeypatch.setattr("myna.control.cli.launch.require_daemon_package", lambda: None)
    return script


def test_a_daemon_that_dies_at_start_tells_its_last_lines(
    state: Path, pretend_daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_daemon.write_text("import sys; print('no port for me', file=sys.stderr); sys.exit(6)")
    code, shown = run_json(capsys, "up")
    assert (code, shown["error"]["code"]) == (6, "not_allowed")
    assert "no port for me" in shown["error"]["message"]
    told = {"ok": False, "error": {"code": "state_unwritable", "message": "full", "facts": {"path": "/x"}}}
    pretend_daemon.write_text(f"print({json.dumps(json.dumps(told))}); raise SystemExit(1)")
    code, shown = run_json(capsys, "up")
    assert (code, shown["error"]["code"], shown["error"]["facts"]) == (1, "state_unwritable", {"path": "/x"})


def test_a_daemon_that_was_started_at_the_same_moment_is_as_good(
    state: Path, server: Server, pretend_daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_daemon.write_text(f"open({str(state / 'tried')!r}, 'w').close(); raise SystemExit(5)")
    start_daemon([])
    assert (state / "tried").exists()
    with Client() as client:
        assert client.hello().pid == os.getpid()  # the one that was there first


DAEMON = """
import os, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
from myna.control import contract
from myna.control.connection import *
from myna.control.process import started_at
from myna.daemon.wire.server import Server
state = state_dir()
endpoint, events = ipc_endpoints(state)
done = threading.Event()
def shutdown(_):
    done.set()
    return contract.Empty()
status = contract.SessionStatus(session="main", state="running")
handlers = {"shutdown": shutdown, "live.start": lambda _: status}
with Server(endpoint, handlers, version="0", state_dir=state, events=events):
    pid = os.getpid()
    write_connection(state, Connection(endpoint=endpoint, events=events, pid=pid, started=started_at(pid)))
    done.wait(60)
    remove_connection(state, pid)
"""


def test_up_starts_a_daemon_and_down_ends_it(
    state: Path, pretend_daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_daemon.write_text(DAEMON)
    code, shown = run_json(capsys, "up")
    assert code == 0
    assert shown["started"]
    assert load_connection(connection_file(state)).pid == shown["daemon"]["pid"] != os.getpid()
    assert run_json(capsys, "up")[1]["started"] is False
    reaper = threading.Thread(target=os.waitpid, args=(shown["daemon"]["pid"], 0))
    reaper.start()
    code, ended = run_json(capsys, "down")
    reaper.join(WAIT_S)
    assert (code, ended["stopped"]) == (0, True)
    assert not connection_file(state).exists()


def test_force_ends_a_daemon_that_does_not_answer(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from myna.control.process import started_at

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stuck:
        write_connection(
            state,
            Connection(endpoint=f"ipc://{state}/none", events="", pid=stuck.pid, started=started_at(stuck.pid)),
        )
        code, _ = run_json(capsys, "down")
        assert code == 3
        assert stuck.poll() is None
        code, ended = run_json(capsys, "down", "--force")
        assert (code, ended["stopped"]) == (0, True)
        assert stuck.wait(WAIT_S) < 0
