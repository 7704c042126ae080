"""Write the table of methods and backbones in docs/backbones.md.

python scripts/backbone_table.py
"""

from __future__ import annotations

import argparse

import pages

from dca.methods.compatibility import compatibility_table
from dca.methods.registry import all_methods

TABLE = "backbones: scripts/backbone_table.py"


def make_table() -> str:
    """The methods of this package and every family of backbones."""
    own = [method for method in all_methods().values() if method.__module__.startswith("dca.methods.")]
    return compatibility_table([method for method in own if not method.fits_others])


def main() -> None:
    """Write the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    pages.write_part(TABLE, make_table())


if __name__ == "__main__":
    main()
