"""`python -m xstage` is the `xstage` command."""

import sys

from .entry import main

if __name__ == "__main__":
    sys.exit(main())
