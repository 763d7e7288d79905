"""`python -m myna.control.cli`: the `myna` command where its script is not on the path."""

import sys

from myna.control.cli import main

if __name__ == "__main__":
    sys.exit(main())
