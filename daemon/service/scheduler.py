"""The task for Windows' Task Scheduler; pure."""

import subprocess
from pathlib import PureWindowsPath
from xml.sax.saxutils import escape

from myna.daemon.service.plan import DESCRIPTION, Plan

SCHEMA = "http://schemas.microsoft.com/windows/2004/02/mit/task"


def windowless(python: str) -> str:
    """The interpreter that opens no console window: `pythonw.exe` beside `python.exe`."""
    path = PureWindowsPath(python)
    return str(path.with_name("pythonw.exe")) if path.name.lower() == "python.exe" else python


def task(plan: Plan, user: str) -> str:
    """The task's XML for `user` (`MACHINE\\name`): at logon, as the user, without elevation, without a time limit.

    Priority 4 is a normal process; the scheduler's own default (7) is below normal, where sound stutters. Restarts:
    the scheduler's shortest interval is one minute. Source: Microsoft, Task Scheduler Schema.
    """
    arguments = subprocess.list2cmdline(plan.command[1:])
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="{SCHEMA}">
  <RegistrationInfo>
    <Description>{escape(DESCRIPTION)}</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
      <UserId>{escape(user)}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{escape(user)}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <AllowHardTerminate>true</AllowHardTerminate>
    <StartWhenAvailable>true</StartWhenAvailable>
    <RunOnlyIfNetworkAvailable>false</RunOnlyIfNetworkAvailable>
    <AllowStartOnDemand>true</AllowStartOnDemand>
    <Enabled>true</Enabled>
    <Hidden>false</Hidden>
    <RunOnlyIfIdle>false</RunOnlyIfIdle>
    <WakeToRun>false</WakeToRun>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>4</Priority>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>5</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(windowless(plan.command[0]))}</Command>
      <Arguments>{escape(arguments)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""
