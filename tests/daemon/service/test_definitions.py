"""The three autostart definitions, each held to its own system's rules."""

import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from myna.daemon.service.launchd import agent
from myna.daemon.service.plan import HOPELESS, LABEL, WATCHDOG_S, Plan, plan_for
from myna.daemon.service.scheduler import SCHEMA, task, windowless
from myna.daemon.service.systemd import quoted, unit

NASTY = '/home/a b/50%/$HOME/"q"/it\'s\\x'
PLANS = [
    plan_for({}, state_dir=Path("/s")),
    plan_for({"MYNA_STATE_DIR": NASTY, "MYNA_CONFIG": "/c d.toml"}, state_dir=Path(NASTY)),
]


def test_the_plan_names_only_what_was_chosen() -> None:
    assert PLANS[0].command == (sys.executable, "-m", "myna.daemon", "--foreground", "--resume")
    assert PLANS[1].command[5:] == ("--state-dir", NASTY, "--config", "/c d.toml")


# --- systemd --------------------------------------------------------------------------------------------


def verify(text: str, folder: Path) -> str:
    """What `systemd-analyze verify --user` says; it ends with 0 on unknown keys, so any word is a failure."""
    folder.mkdir(exist_ok=True)
    path = folder / "myna.service"
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(path)],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        check=False,
    )
    return done.stderr + done.stdout + ("" if done.returncode == 0 else f"exit code {done.returncode}")


@pytest.fixture
def analyze() -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze not installed (python3 tools/dev.py setup --audio)")


@pytest.mark.usefixtures("analyze")
@pytest.mark.parametrize("plan", PLANS)
def test_systemd_has_no_complaint(plan: Plan, tmp_path: Path) -> None:
    assert verify(unit(plan), tmp_path) == ""


@pytest.mark.usefixtures("analyze")
@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("WatchdogSec=", "WatchdogSecs=", "Unknown key"),
        ("Type=notify", "Type=notified", "notified"),
        ("SystemCallFilter=~@clock", "SystemCallFilter=~@clok", "@clok"),
        (f'ExecStart="{sys.executable}"', 'ExecStart="/nowhere/python"', "/nowhere/python"),
    ],
)
def test_systemd_would_have_complained(good: str, bad: str, words: str, tmp_path: Path) -> None:
    text = unit(PLANS[0])
    assert good in text
    assert words in verify(text.replace(good, bad), tmp_path)


def test_the_unit_asks_for_what_audio_needs() -> None:
    text = unit(PLANS[0])
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert settings["Type"] == "notify"
    assert settings["WatchdogSec"] == str(WATCHDOG_S)
    assert {"pipewire.service", "pulseaudio.service"} <= set(settings["After"].split())
    assert settings["RestartPreventExitStatus"].split() == [str(code) for code in HOPELESS]
    assert "--resume" in settings["ExecStart"]
    # What would take sound, real-time priority or the user's files away.
    for harmful in ("RestrictRealtime", "PrivateDevices", "ProtectHome", "PrivateTmp", "MemoryDenyWriteExecute"):
        assert harmful not in settings


def test_quoting_is_undone_by_systemds_own_rules() -> None:
    words = [NASTY, "a\nb\tc", ""]
    undone = []
    for word in re.findall(r'"((?:[^"\\]|\\.)*)"', quoted(words)):
        word = word.replace("%%", "%").replace("$$", "$")
        undone.append(re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), word))
    assert undone == words


# --- launchd --------------------------------------------------------------------------------------------

# launchd.plist(5): the type of each key that may be used.
AGENT_KEYS = {
    "Label": str,
    "ProgramArguments": list,
    "RunAtLoad": bool,
    "KeepAlive": dict,
    "ThrottleInterval": int,
    "ProcessType": str,
    "LimitLoadToSessionType": str,
    "ExitTimeOut": int,
    "Umask": int,
    "StandardOutPath": str,
    "StandardErrorPath": str,
}


@pytest.mark.parametrize("plan", PLANS)
def test_the_agent_has_the_right_types(plan: Plan) -> None:
    parsed = plistlib.loads(agent(plan))
    for key, value in parsed.items():
        assert type(value) is AGENT_KEYS[key], key
    assert parsed["Label"] == LABEL
    assert tuple(parsed["ProgramArguments"]) == plan.command
    assert parsed["KeepAlive"] == {"SuccessfulExit": False}
    assert parsed["ProcessType"] in {"Background", "Standard", "Adaptive", "Interactive"}
    assert Path(parsed["StandardOutPath"]).is_absolute()


# --- Task Scheduler -------------------------------------------------------------------------------------

BOOLEAN = r"true|false"
DURATION = r"P(?=.)(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?"
TEXT = r"(?s).+"
# The schema's elements that are used, with the pattern of their content; None: elements inside.
TASK_SCHEMA = {
    "Task": None,
    "Task/RegistrationInfo": None,
    "Task/RegistrationInfo/Description": TEXT,
    "Task/Triggers": None,
    "Task/Triggers/LogonTrigger": None,
    "Task/Triggers/LogonTrigger/Enabled": BOOLEAN,
    "Task/Triggers/LogonTrigger/UserId": TEXT,
    "Task/Principals": None,
    "Task/Principals/Principal": None,
    "Task/Principals/Principal/UserId": TEXT,
    "Task/Principals/Principal/LogonType": r"S4U|Password|InteractiveToken",
    "Task/Principals/Principal/RunLevel": r"LeastPrivilege|HighestAvailable",
    "Task/Settings": None,
    "Task/Settings/MultipleInstancesPolicy": r"Parallel|Queue|IgnoreNew|StopExisting",
    "Task/Settings/DisallowStartIfOnBatteries": BOOLEAN,
    "Task/Settings/StopIfGoingOnBatteries": BOOLEAN,
    "Task/Settings/AllowHardTerminate": BOOLEAN,
    "Task/Settings/StartWhenAvailable": BOOLEAN,
    "Task/Settings/RunOnlyIfNetworkAvailable": BOOLEAN,
    "Task/Settings/AllowStartOnDemand": BOOLEAN,
    "Task/Settings/Enabled": BOOLEAN,
    "Task/Settings/Hidden": BOOLEAN,
    "Task/Settings/RunOnlyIfIdle": BOOLEAN,
    "Task/Settings/WakeToRun": BOOLEAN,
    "Task/Settings/ExecutionTimeLimit": DURATION,
    "Task/Settings/Priority": r"10|\d",
    "Task/Settings/RestartOnFailure": None,
    "Task/Settings/RestartOnFailure/Interval": DURATION,
    "Task/Settings/RestartOnFailure/Count": r"[1-9]\d{0,2}",
    "Task/Actions": None,
    "Task/Actions/Exec": None,
    "Task/Actions/Exec/Command": TEXT,
    "Task/Actions/Exec/Arguments": TEXT,
}


def schema_problems(text: str) -> list[str]:
    """What the schema would refuse: unknown or repeated elements, wrong content."""
    root = ElementTree.fromstring(text[text.index("<Task") :])
    problems: list[str] = []

    def walk(element: ElementTree.Element, path: str) -> None:
        pattern = TASK_SCHEMA.get(path, "unknown")
        if pattern == "unknown":
            problems.append(f"{path} is unknown")
        elif pattern is None:
            names = [child.tag for child in element]
            problems.extend(f"{path}: {name} twice" for name in set(names) if names.count(name) > 1)
            for child in element:
                walk(child, f"{path}/{child.tag.removeprefix('{' + SCHEMA + '}')}")
        elif not re.fullmatch(pattern, element.text or ""):
            problems.append(f"{path} is {element.text!r}")

    walk(root, root.tag.removeprefix("{" + SCHEMA + "}"))
    return problems


@pytest.mark.parametrize("plan", PLANS)
def test_the_task_keeps_the_schemas_rules(plan: Plan) -> None:
    text = task(plan, r"PC\Ä & <B>")
    assert schema_problems(text) == []
    root = ElementTree.fromstring(text[text.index("<Task") :])
    names = {"t": SCHEMA}
    assert root.get("version") == "1.2"
    assert root.findtext(".//t:Principal/t:UserId", namespaces=names) == r"PC\Ä & <B>"
    actions, principal = root.find("t:Actions", names), root.find(".//t:Principal", names)
    assert actions is not None
    assert principal is not None
    assert actions.get("Context") == principal.get("id")


@pytest.mark.parametrize(
    ("good", "bad"),
    [("PT0S", "0"), (">4</Pri", ">normal</Pri"), ("LeastPrivilege", "Low"), ("Hidden>", "Hiden>"), ("PT1M", "PTM")],
)
def test_the_schemas_rules_would_refuse(good: str, bad: str) -> None:
    assert schema_problems(task(PLANS[0], "u").replace(good, bad)) != []


def test_no_console_window_opens_at_login() -> None:
    assert windowless(r"C:\Py\python.exe") == r"C:\Py\pythonw.exe"
    assert windowless(r"C:\Py\pythonw.exe") == r"C:\Py\pythonw.exe"
    plan = Plan(command=(r"C:\Py\python.exe", "-m", "x", r"C:\a b\c"), log=Path("/l"))
    assert r"<Arguments>-m x &quot;" not in task(plan, "u")  # quotes need no escape in text
    assert '<Arguments>-m x "C:\\a b\\c"</Arguments>' in task(plan, "u")
