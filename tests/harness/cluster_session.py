"""A session of a cluster's state in a process of its own, which is asked, killed, stopped and woken."""

import ast
import os
import signal
import subprocess
import sys
from typing import Any, Self

from tests.harness.commands import environment


class SessionProcess:
    """Evaluates expressions over `state`, a `ClusterState`, and `events`, what it has told, and returns their values."""

    def __init__(self, address: str, session_timeout_s: float = 10.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.cluster_session", address, str(session_timeout_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def begin(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """Return the value of the first expression that was begun and whose value was not returned."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the session's process has ended: {self.process.communicate()[1]}"
        return ast.literal_eval(line)

    def ask(self, expression: str) -> Any:
        self.begin(expression)
        return self.result()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop it: it keeps its connections, and does nothing."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> str:
        """Let it close its session and end; returns what it said on its standard error."""
        return self.process.communicate(timeout=60)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.communicate()


def main(address: str, session_timeout_s: float) -> None:
    """Answer each line of the standard input by a line of the standard output."""
    from trident.cluster_state.cluster_address import open_cluster_state

    events: list[tuple[str, ...]] = []
    state = open_cluster_state(address, session_timeout_s)
    state.register(lambda event: events.append(tuple(event)))
    for line in sys.stdin:
        sys.stdout.write(f"{eval(line, {'state': state, 'events': events})!r}\n")
        sys.stdout.flush()
    state.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
