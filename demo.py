"""Train the copy task for a minute and watch it work: the same as the command `transformer demo`."""

import sys

from transformer.cli import main

sys.exit(main(["demo", *sys.argv[1:]]))
