"""The daemon: processes, devices, clocks and disks."""
