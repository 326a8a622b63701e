"""Starting: processes from their beginning to their end.

Ours are `import transformer` and `transformer --help`; beside them Python that does nothing, and `import torch`,
without which there is no model.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

from contest import ROOT, Contest, main

COMMANDS = {
    "ours": ("-c", "import transformer"),
    "transformer --help": ("-m", "transformer", "--help"),
    "import torch": ("-c", "import torch"),
    "python": ("-c", "pass"),
}


def contest(n_items: int = 1, seed: int = 0) -> Contest:
    """Start each command this many times a round."""

    def starter(command: tuple[str, ...]) -> Callable[[int], None]:
        def start(_: int) -> None:
            subprocess.run([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)

        return start

    return Contest({name: partial(starter, command) for name, command in COMMANDS.items()}, range(n_items))


if __name__ == "__main__":
    main(contest)
