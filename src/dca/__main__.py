"""`python -m dca`, and the `dca` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit."""
    from dca.cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
