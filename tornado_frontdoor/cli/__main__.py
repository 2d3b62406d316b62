"""`python -m tornado_frontdoor.cli`: what `bin/frontdoor` runs."""

import sys

from tornado_frontdoor.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
