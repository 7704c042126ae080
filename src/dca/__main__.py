"""`python -m dca`, and the `dca` command."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command line and exit."""
    # Read when torch is loaded. By default threads of torch that wait for each other keep their cores busy, and where
    # other programs use the cores, too, such as a browser beside `dca app`, a fit takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
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
