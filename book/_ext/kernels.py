"""Start kernels by forking, so that the heavy libraries are imported once and not by every notebook.

A process that has imported them waits for orders. For each it forks, and the child becomes an ordinary IPython kernel.
This book's package is not among what is imported before: every notebook finds it as it is on the disk.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from unittest import mock

from jupyter_client.provisioning import local_provisioner


class Forked:
    """A kernel's process, with what jupyter_client asks of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        """None while it runs. How it ended is not known here; the notebook's client learns that from its messages."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    wait = poll  # called when it has ended

    def send_signal(self, number):
        """Like Popen's."""
        os.kill(self.pid, number)

    def kill(self):
        """Like Popen's."""
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        """Like Popen's."""
        self.send_signal(signal.SIGTERM)


@contextmanager
def warm_kernels():
    """Within the block every kernel of this process is forked. Where there is no fork, they start as usual."""
    if not hasattr(os, "fork"):
        yield
        return
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, __file__], **pipes) as server:

        def launch(command, env=None, cwd=None, **others):
            order = {"arguments": command[3:], "env": dict(env or os.environ), "cwd": str(cwd or os.getcwd())}
            server.stdin.write(json.dumps(order) + "\n")
            server.stdin.flush()
            return Forked(int(server.stdout.readline()))

        with mock.patch.object(local_provisioner, "launch_kernel", launch):
            yield
        server.stdin.close()  # no more orders


def become_a_kernel(app, arguments, env, cwd):
    """In the child: forget the parent's pipes, folder and environment, and run."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    del sys.path[0]  # the folder of this file
    sys.argv = ["ipykernel_launcher", *arguments]
    app.launch_new_instance()
    os._exit(0)


def serve():
    import altair  # noqa: F401
    import ipykernel.kernelapp as app
    import torch._dynamo  # noqa: F401 - what the first optimizer would import

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who has ended is gone, without being waited for
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            become_a_kernel(app, **json.loads(line))
        os.setpgid(pid, pid)  # a signal to the kernel's group must not reach this process
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
