"""`python -m xstage` is the `xstage` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
