"""`python -m diagnose` is `diagnose`."""

import sys

from diagnose.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
