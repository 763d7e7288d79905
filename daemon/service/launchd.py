"""The LaunchAgent of macOS; pure."""

import plistlib

from myna.daemon.service.plan import LABEL, Plan


def agent(plan: Plan) -> bytes:
    """The property list, as XML.

    Source: launchd.plist(5).
    """
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(plan.command),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 10,
            "ProcessType": "Interactive",  # the default throttles processor and disk, and sound stutters
            "LimitLoadToSessionType": "Aqua",  # sound and the microphone's consent belong to the desktop
            "ExitTimeOut": 30,
            "Umask": 0o077,
            "StandardOutPath": str(plan.log),
            "StandardErrorPath": str(plan.log),
        },
        sort_keys=False,
    )
