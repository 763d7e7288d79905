"""RVC voices."""
