"""Children of the lab's supervisor: what they share, whose death is told, and that they die with it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.children import Child, Children
from lab.identity import Identity
from tests.sleepers import SLEEP

CHECKOUT = Path(__file__).parents[2]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child's life to its parent's")


async def test_children_share_a_group_that_is_not_the_supervisors(tmp_path: Path) -> None:
    children = Children(tmp_path, on_death=lambda child, code: None)
    first = await children.start("one", SLEEP, env={})
    second = await children.start("two", SLEEP, env={})

    assert os.getpgid(first.process.pid) == os.getpgid(second.process.pid) == first.process.pid
    assert os.getpgid(0) != first.process.pid
    await children.stop("one", "two")
    assert not first.running
    assert not second.running


async def test_only_a_death_nobody_asked_for_is_reported(tmp_path: Path) -> None:
    deaths: list[tuple[str, int]] = []
    children = Children(tmp_path, on_death=lambda child, code: deaths.append((child.name, code)))
    await children.start("asked", SLEEP, env={})
    victim = await children.start("crashed", [sys.executable, "-c", "print('last words'); raise SystemExit(7)"], env={})
    await victim.process.wait()
    await children.stop("asked")
    await asyncio.sleep(0)

    assert deaths == [("crashed", 7)]
    assert (tmp_path / "crashed.log").read_text() == "last words\n"


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.children.KILL_AFTER_S", 0.2)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    children = Children(tmp_path, on_death=lambda child, code: None)
    child = await children.start("stubborn", [sys.executable, "-c", stubborn], env={})
    await _says(child, "up")

    await children.stop("stubborn")

    assert child.process.returncode == -signal.SIGKILL


async def _says(child: Child, word: str) -> None:
    async with asyncio.timeout(10):
        while word not in child.log.read_text():
            await asyncio.sleep(0.02)


@linux_only
def test_a_killed_supervisor_leaves_no_child(tmp_path: Path) -> None:
    script = f"""
import asyncio, sys
from pathlib import Path
from lab.children import Children
async def main():
    children = Children(Path({str(tmp_path)!r}), on_death=lambda child, code: None)
    for name in ("one", "two"):
        child = await children.start(name, {SLEEP!r}, env={{}})
        print(child.process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    supervisor = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, start_new_session=True
    )
    assert supervisor.stdout is not None
    children = [Identity.of(int(supervisor.stdout.readline())) for _ in range(2)]
    assert None not in children

    supervisor.kill()
    supervisor.wait()

    assert all(child is not None and child.gone_within(3) for child in children)
