"""`python -m dca`, and the `dca` command."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line and exit."""
    from dca.cli import main as run

    if isinstance(sys.stdout, io.TextIOWrapper):  # names that the terminal cannot show are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, e.g. `head`, has closed the pipe: nothing may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
