"""The reachability stage: the platform's names answer from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from pydantic import Field

from cozystack_iac.kube import kubeconfig as kubeconfigs
from cozystack_iac.kube.client import Kube, KubeError, Ref
from cozystack_iac.readiness import probes
from cozystack_iac.readiness.reachability import Address, DnsStanding, Reach, Standing, Target, judge_dns
from cozystack_iac.readiness.reachability import judge as judge_outcome
from cozystack_iac.stage import Progress, Properties, StageFailed, StageProvider, StageResource, budget, format_seconds

PROBE_EVERY_S = 1.0
TICK_S = 0.5
SHOWN = 5  # failures in a progress line
ROOT_INGRESS = Ref("v1", "services", "tenant-root", "root-ingress-controller")


class ReachInputs(Properties):
    kubeconfig: str = Field(repr=False)
    host: str
    addresses: list[str]  # external addresses of the ingress; none: those its load balancer was given
    public: list[str] = Field(default_factory=list)  # addresses outside a NAT to which names may also lead
    exposed: list[str]  # services that are published; api and dashboard are probed
    resolvers: list[str] = Field(default_factory=list)  # asked as well; no third party unless the stack names it
    port: int = 443
    backend_s: float = 120  # how long an ingress may answer 502 to 504 for a backend that starts
    deadline_s: float


class ReachOutputs(Properties):
    reached: dict[str, str]  # URL and address -> "HTTP 302"
    dns: dict[str, str]  # name -> "resolved: 10.0.0.11"
    seconds: int


class ReachabilityProvider(StageProvider[ReachInputs, ReachOutputs]):
    """The dashboard and the API answer at every external address. Where names lead is reported, it decides nothing."""

    inputs = ReachInputs
    outputs = ReachOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"host", "addresses", "exposed", "port"})

    async def establish(self, inputs: ReachInputs, progress: Progress) -> ReachOutputs:
        seen: tuple[Standing, ...] = ()

        def expired() -> StageFailed:
            return _unreached(inputs, seen, f"{format_seconds(inputs.deadline_s)} budget used up")

        async with budget(inputs.deadline_s, expired):
            targets, ca = await _targets(inputs, progress), _cluster_ca(inputs)
            starting_since: dict[Target, float] = {}
            while True:
                seen = await _probe_all(targets, ca)
                open_ = [s for s in seen if not s.ok]
                if not open_:
                    break
                if any(_started_too_long(s, starting_since, inputs.backend_s) for s in seen):
                    raise _unreached(inputs, seen, f"{format_seconds(inputs.backend_s)} of answers without a backend")
                progress.say("; ".join(f"{s.target}: {s.words}" for s in open_[:SHOWN]))
                await asyncio.sleep(PROBE_EVERY_S)
            dns = await _names(inputs, targets)
        for standing in dns:
            if standing.remedy:
                progress.say(f"{standing.name}: {standing.dns.value}, {standing.words}; {standing.remedy}")
        return _report(seen, dns, round(progress.elapsed.total_seconds()))

    async def observe(self, inputs: ReachInputs, outputs: ReachOutputs) -> ReachOutputs | None:
        targets = await _targets(inputs, Progress("Reachability"))
        seen = await _probe_all(targets, _cluster_ca(inputs))
        return _report(seen, await _names(inputs, targets), outputs.seconds)


class Reachability(StageResource, module="cozystack", name="Reachability"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(ReachabilityProvider(), name, inputs, opts)


def _given(inputs: ReachInputs, addresses: list[str]) -> list[Target]:
    return [
        Target(f"{service}.{inputs.host}", ip_address(address), inputs.port, passthrough=service == "api")
        for service in ("dashboard", "api")
        if service in inputs.exposed
        for address in addresses
    ]


async def _targets(inputs: ReachInputs, progress: Progress) -> list[Target]:
    addresses = inputs.addresses
    if addresses:
        return _given(inputs, addresses)
    async with Kube.connect(inputs.kubeconfig) as kube:
        while True:
            try:
                service = await kube.get(ROOT_INGRESS)
                status = (service.get("status") or {}).get("loadBalancer") or {}
                addresses = [a for entry in status.get("ingress") or () for a in await _balancer(entry)]
                trouble = "has no address yet"
            except KubeError as error:
                trouble = str(error)
            if addresses:
                return _given(inputs, addresses)
            progress.say(f"waiting for the load balancer of {ROOT_INGRESS}: {trouble}")
            await asyncio.sleep(TICK_S)


async def _balancer(entry: Mapping[str, Any]) -> list[str]:
    """Addresses of one entry of a load balancer's status; some clouds give only a name."""
    if entry.get("ip"):
        return [str(entry["ip"])]
    found = await probes.lookup_here(str(entry["hostname"])) if entry.get("hostname") else None
    return sorted(map(str, found.addresses)) if found else []


def _cluster_ca(inputs: ReachInputs) -> str:
    """PEM of the CA that signs the API server's certificate. Raises BadKubeconfig."""
    return (kubeconfigs.parse(inputs.kubeconfig).ca_pem or b"").decode()


async def _probe_all(targets: list[Target], ca: str) -> tuple[Standing, ...]:
    outcomes = await asyncio.gather(*(probes.probe(target, ca) for target in targets))
    return tuple(judge_outcome(target, outcome) for target, outcome in zip(targets, outcomes, strict=True))


def _started_too_long(standing: Standing, since: dict[Target, float], limit_s: float) -> bool:
    if standing.reach is not Reach.STARTING:
        since.pop(standing.target, None)
        return False
    return time.monotonic() - since.setdefault(standing.target, time.monotonic()) >= limit_s


async def _names(inputs: ReachInputs, targets: list[Target]) -> tuple[DnsStanding, ...]:
    accepted: set[Address] = {t.address for t in targets} | {ip_address(a) for a in inputs.public}

    async def standing(name: str) -> DnsStanding:
        here, *others = await asyncio.gather(
            probes.lookup_here(name), *(probes.lookup_at(name, resolver) for resolver in inputs.resolvers)
        )
        return judge_dns(name, here, others, accepted)

    return tuple(await asyncio.gather(*(standing(name) for name in sorted({t.name for t in targets}))))


def _report(seen: tuple[Standing, ...], dns: tuple[DnsStanding, ...], seconds: int) -> ReachOutputs:
    return ReachOutputs(
        reached={str(s.target): s.words for s in seen},
        dns={d.name: f"{d.dns.value}: {d.words}" for d in dns},
        seconds=seconds,
    )


def _unreached(inputs: ReachInputs, seen: tuple[Standing, ...], why: str) -> StageFailed:
    failed = [s for s in seen if not s.ok]
    remedies = list(dict.fromkeys(s.remedy for s in failed if s.remedy))
    return StageFailed(
        f"The platform at {inputs.host} does not answer everywhere ({why}).",
        details={str(s.target): f"{s.words}\n{s.means}".strip() for s in failed} or {"last seen": "no answer yet"},
        means="the platform itself is ready; people cannot reach it at these addresses",
        next_step=f"{'; '.join(remedies) or 'check the addresses'}; then run `pulumi up` again",
    )
