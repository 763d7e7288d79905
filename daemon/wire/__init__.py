"""The control channel: who is let in, what is asked, answered and published."""
