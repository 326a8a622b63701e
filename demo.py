"""Train the copy task for a minute and watch it work: the same as `transformer demo`."""

from transformer.cli import main

raise SystemExit(main(["demo"]))
