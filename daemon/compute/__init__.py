"""Which device computes, in which precision, in what chunks, and why."""
