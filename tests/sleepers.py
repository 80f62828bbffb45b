"""Processes that only sleep, and what is left of them: one that is gone, one whose number another has now."""

import subprocess
import sys

from lab.identity import Identity

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def reused(identity: Identity) -> Identity:
    """What a record says after its process ended and the pid was given to another one."""
    return Identity(identity.pid, identity.started - 1, identity.boot)


def gone() -> Identity:
    process = subprocess.Popen(SLEEP)
    identity = Identity.of(process.pid)
    assert identity is not None
    process.kill()
    process.wait()
    return identity
