"""How soon the wait for the platform knows what has changed: `python -m bench.readiness`.

A whole install is played by a small API server in this process: every release is written, starts, and becomes ready, in the
order of its dependencies. The product's own stage waits for it in a process of its own, so that its memory is its own, over
HTTP (without TLS). Reaction: from writing a status to the line that counts it; the end: from the last status to the stage's
return. The floor is a bare watch that only counts, in another run of the same play. Exit code 1 when a budget is missed.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

import httpx

from cozystack_iac.kube.client import Kube
from cozystack_iac.readiness.view import KINDS, PACKAGES, RELEASES, SOURCES
from lab.platform import catalogue, helmstatus, objects

SIZES = {92: 20.0, 1_000: 60.0}  # releases, and the seconds in which all of them become ready
ACTION_S = 0.3
BUDGET_S = 1.0  # p99
BUDGET_MIB = 200.0
VERSION = "1.6.2"
WRITTEN = [{"type": "Ready", "status": "True", "reason": "ReconciliationSucceeded", "message": "generated"}]


@dataclass
class World:
    """An API server for the kinds that are watched. Objects by path of their collection and name."""

    collections: dict[str, dict[str, dict[str, Any]]]
    watchers: dict[str, list[asyncio.StreamWriter]] = field(default_factory=dict)
    opened: Counter[str] = field(default_factory=Counter)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    expected: int = len(KINDS)

    def write(self, path: str, obj: dict[str, Any], event: str = "MODIFIED") -> None:
        """Store an object and tell who watches."""
        self.collections[path][f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"] = obj
        line = json.dumps({"type": event, "object": obj}).encode() + b"\n"
        for writer in self.watchers.get(path, ()):
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: lists and versions until it is closed, or one watch."""
        while request := await reader.readline():
            while (await reader.readline()).strip():
                pass
            path, _, query = request.split()[1].decode().partition("?")
            if "watch=true" in query:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                self.watchers.setdefault(path, []).append(writer)
                self.opened[path] += 1
                if len(self.opened) >= self.expected:
                    self.complete.set()
                await reader.read()  # until the client goes
                break
            items = list(self.collections.get(path, {}).values())
            body = json.dumps({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            await writer.drain()


def world(size: int) -> tuple[World, dict[str, tuple[str, ...]]]:
    """Packages and sources of a platform with `size` releases, and what each release waits for. Big ones are copies of one."""
    known = catalogue.load(VERSION)
    chosen = known.emitted(known.choice("isp-full", {"authentication": {"oidc": {"enabled": True}}}))
    emitted = {p.name: p for p in chosen}
    items = {r.ref: r for p in chosen for r in catalogue.releases(p, emitted)}
    order: dict[str, tuple[str, ...]] = {}
    copies = -(-size // len(items))
    for copy in range(copies):
        for ref, item in items.items():
            if len(order) < size:
                order[_copied(ref, copy)] = tuple(_copied(d, copy) for d in item.depends_on)
    platform = {"metadata": {"name": "cozystack.cozystack-platform", "generation": 1}, "spec": {"variant": "isp-full"}}
    packages = [platform, *(objects.package(p) for p in chosen)]
    sources = [objects.platform_source(), *(objects.package_source(n, v) for n, v in known.sources().items())]
    written = [{**p, "status": {"conditions": WRITTEN}} for p in packages]
    collections: dict[str, dict[str, dict[str, Any]]] = {ref.path: {} for ref in KINDS}
    made = World(collections)
    for obj in written:
        made.write(PACKAGES.path, obj)
    for obj in sources:
        made.write(SOURCES.path, obj)
    order = {ref: tuple(d for d in needs if d in order) for ref, needs in order.items()}  # the last copy is cut off
    order["cozy-system/cozystack-platform"] = ()
    for chart in known.charts:
        if chart.parent in order and not chart.when:
            order[chart.ref] = (chart.parent,)
    for ref, needs in order.items():
        made.write(RELEASES.path, _release(ref, needs, helmstatus.HelmStatus(), 0))
    return made, order


def _copied(ref: str, copy: int) -> str:
    return f"{ref}-{copy}" if copy else ref


def _release(ref: str, needs: tuple[str, ...], status: helmstatus.HelmStatus, generation: int) -> dict[str, Any]:
    namespace, name = ref.split("/")
    depends = [{"namespace": d.split("/")[0], "name": d.split("/")[1]} for d in needs]
    stamp = objects.timestamp()
    return {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "generation": 1,
            "creationTimestamp": stamp,
            "labels": {"cozystack.io/package": "bench"},
            "managedFields": [{"manager": "helm-controller", "operation": "Update", "fieldsV1": {"f:status": {}}}] * 3,
        },
        "spec": {"dependsOn": depends, "interval": "5m0s", "chartRef": {"kind": "ExternalArtifact", "name": name}},
        "status": helmstatus.body(status, generation, {}, stamp),
    }


async def play(made: World, needs: dict[str, tuple[str, ...]], within_s: float) -> list[float]:
    """Every release starts and becomes ready, dependencies first; when each was written ready, on the machine's clock."""
    ready_at: list[float] = []
    order = list(TopologicalSorter(needs).static_order())
    started = time.monotonic()

    async def one(ref: str, at: float) -> None:
        await asyncio.sleep(started + at - time.monotonic())
        status = helmstatus.HelmStatus().fulfilling().running("install", 600)
        made.write(RELEASES.path, _release(ref, needs[ref], status, 1))
        await asyncio.sleep(ACTION_S)
        done = status.succeeded("install", helmstatus.Chart(ref, "chart", "1.0.0"), 1)
        made.write(RELEASES.path, _release(ref, needs[ref], done, 1))
        ready_at.append(time.monotonic())

    await asyncio.gather(*(one(ref, number * within_s / len(order)) for number, ref in enumerate(order)))
    return sorted(ready_at)


# The process that waits -----------------------------------------------------------------------------------------------


def _tell(count: int) -> None:
    print(json.dumps([time.monotonic(), count]), flush=True)


async def wait(port: int) -> None:
    """The product's stage; every line it says is told with its count and the machine's clock."""
    from cozystack_iac.stages.platform_ready import PlatformInputs, PlatformReadyProvider
    from cozystack_iac.waiting import Progress

    @asynccontextmanager
    async def connect(*_: Any, **__: Any) -> AsyncIterator[Kube]:
        async with _http(port) as http:
            yield Kube(http)

    Kube.connect = connect  # type: ignore[method-assign]  # the server here speaks no TLS

    def heard(text: str) -> None:
        if found := re.search(r"(\d+) of \d+ ready", text):
            _tell(int(found[1]))

    inputs = PlatformInputs(kubeconfig="bench", variant="default", settle_s=0, deadline_s=300)
    made = await PlatformReadyProvider().establish(inputs, Progress("PlatformReady", write=heard))
    _tell(made.releases)


async def count(port: int, releases: int) -> None:
    """The floor: the stream of a watch, and nothing done but counting."""
    ready: set[str] = set()
    async with (
        _http(port) as http,
        http.stream("GET", RELEASES.path, params={"watch": "true"}, timeout=httpx.Timeout(10, read=300)) as stream,
    ):
        async for line in stream.aiter_lines():
            obj = json.loads(line)["object"]
            if obj["status"]["conditions"][-1]["reason"] == "InstallSucceeded":
                ready.add(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
                _tell(len(ready))
            if len(ready) >= releases:
                return


def _http(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False)


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux, bytes on macOS
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


# Measuring ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Seconds of reaction for every release, until the end, peak memory of the waiting process, watches it opened."""

    reactions: tuple[float, ...]
    end_s: float
    peak_mib: float
    watches: dict[str, int]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.reactions, n=100)[98]


async def measured(size: int, *, floor: bool) -> Measured:
    made, needs = world(size)
    made.expected = 1 if floor else len(KINDS)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    mode = ["--count", str(len(needs))] if floor else ["--wait"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.readiness", "--port", str(port), *mode, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    reading = asyncio.create_task(child.stdout.read())
    try:
        await asyncio.wait_for(made.complete.wait(), 60)
        written = await play(made, needs, SIZES[size])
        lines = [json.loads(line) for line in (await asyncio.wait_for(reading, 60)).splitlines()]
    except BaseException:
        child.kill()
        raise
    if await child.wait():
        raise SystemExit("the waiting process failed")
    server.close()
    await server.wait_closed()
    told, peak = lines[:-1], lines[-1][1]
    reactions = tuple(
        next(at for at, ready in told if ready >= number) - at_ready for number, at_ready in enumerate(written, 1)
    )
    watches = {path.rpartition("/")[2]: n for path, n in made.opened.items()}
    return Measured(reactions, told[-1][0] - written[-1], peak, watches)


def _row(name: str, size: int, found: Measured) -> str:
    middle = statistics.median(found.reactions)
    figures = f"{middle:>7.3f} s {found.p99:>7.3f} s {max(found.reactions):>7.3f} s {found.end_s:>7.3f} s"
    return f"{size:>8} {name:>9} {figures} {found.peak_mib:>6.0f} MiB  {sum(found.watches.values())} watches"


def main() -> int:
    """Run all sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    parser.add_argument("--wait", action="store_true", help="wait as the stage does, in this process")
    parser.add_argument("--count", type=int, help="only count, in this process")
    options = parser.parse_args()
    if options.port:
        asyncio.run(wait(options.port) if options.wait else count(options.port, options.count))
        _tell_peak()
        return 0
    print(f"{'releases':>8} {'':>9} {'median':>9} {'p99':>9} {'worst':>9} {'end':>9} {'peak':>10}")
    fine = True
    for size in SIZES:
        floor = asyncio.run(measured(size, floor=True))
        print(_row("bare", size, floor), flush=True)
        found = asyncio.run(measured(size, floor=False))
        print(_row("the stage", size, found) + f", {found.p99 / max(floor.p99, 0.001):.0f} x the floor", flush=True)
        one_each = all(n == 1 for n in found.watches.values()) and len(found.watches) == len(KINDS)
        fine = fine and found.p99 < BUDGET_S and found.end_s < BUDGET_S and found.peak_mib < BUDGET_MIB and one_each
    budget = f"p99 and end below {BUDGET_S} s, {BUDGET_MIB:.0f} MiB, one watch per kind"
    print(f"budget: {budget}: {'kept' if fine else 'MISSED'}")
    return 0 if fine else 1


def _tell_peak() -> None:
    print(json.dumps([time.monotonic(), _peak_mib()]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
