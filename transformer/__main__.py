# Made by book/tools/export.py; it runs the module cli.
# sha256 of what follows: 4cad52c5a9b4d707
"""Run the command line: ``python -m transformer``."""

import sys

from transformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
