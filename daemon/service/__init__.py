"""Starting with the session: systemd, launchd, Task Scheduler."""
