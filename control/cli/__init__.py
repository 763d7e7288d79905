"""The `myna` command."""
