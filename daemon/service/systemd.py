"""The systemd user unit; pure."""

from collections.abc import Sequence

from myna.daemon.service.plan import DESCRIPTION, HOPELESS, RESTART_LIMIT, RESTART_WINDOW_S, WATCHDOG_S, Plan

SOUND_SERVERS = ("pipewire.service", "pipewire-pulse.service", "wireplumber.service", "pulseaudio.service")

# Only what needs no namespace of its own: those fail to start where unprivileged namespaces are off, and would hide the
# folders that jobs read and write. Left out because sound needs it: RestrictRealtime, PrivateDevices, PrivateTmp.
# MemoryDenyWriteExecute is left out because foreign-function callbacks and compiled voices need such pages.
HARDENING = (
    ("NoNewPrivileges", "yes"),
    ("LockPersonality", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("RestrictNamespaces", "yes"),
    ("RestrictAddressFamilies", "AF_UNIX AF_INET AF_INET6 AF_NETLINK"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallFilter", "~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap"),
    ("SystemCallErrorNumber", "EPERM"),
    ("UMask", "0077"),
)


def quoted(arguments: Sequence[str]) -> str:
    """A command line for ExecStart: every word in quotes, with systemd's own escapes.

    Worked example: `a b%c$d"e` becomes `"a b%%c$$d\\"e"`. Source: systemd.service(5), "Command lines".
    """
    words = []
    for argument in arguments:
        word = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        words.append(f'"{word.replace(chr(10), chr(92) + "n").replace(chr(9), chr(92) + "t")}"')
    return " ".join(words)


def unit(plan: Plan) -> str:
    """The text of `myna.service`."""
    hardening = "\n".join(f"{key}={value}" for key, value in HARDENING)
    return f"""\
# Made by `myna service install`, which also brings it up to date; removed by `myna service uninstall`.
# Changes of your own belong in an override: systemctl --user edit myna
[Unit]
Description={DESCRIPTION}
After={" ".join(SOUND_SERVERS)}
StartLimitIntervalSec={RESTART_WINDOW_S}
StartLimitBurst={RESTART_LIMIT}

[Service]
Type=notify
NotifyAccess=main
ExecStart={quoted(plan.command)}
WatchdogSec={WATCHDOG_S}
Restart=on-failure
RestartSec=2
RestartPreventExitStatus={" ".join(map(str, HOPELESS))}
TimeoutStartSec=60
TimeoutStopSec=30
KillMode=mixed
{hardening}

[Install]
WantedBy=default.target
"""
