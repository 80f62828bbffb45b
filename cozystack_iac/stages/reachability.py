"""The reachability stage: the platform's names answer from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, Literal

from pydantic import Field

from cozystack_iac import published, report
from cozystack_iac.findings import WARNING, Finding, Rule, table_row
from cozystack_iac.kube import kubeconfig as kubeconfigs
from cozystack_iac.kube.client import Kube, KubeError, Ref
from cozystack_iac.reachability import probes, served
from cozystack_iac.reachability.causes import Blame, Cause, Inside, blame
from cozystack_iac.reachability.name_probes import SYSTEM, Names, ask, ask_with_fronts, probe_all
from cozystack_iac.reachability.names import Address, NameStanding
from cozystack_iac.reachability.outcomes import Endpoint, EndpointStanding, Reach, targets
from cozystack_iac.stages.base import Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget, call_limit, format_seconds, pause

PROBE_EVERY_S = 1.0
TICK_S = 0.5
BACKEND_S = 120.0  # Cozystack's own runbooks give a backend two minutes behind an ingress that answers
PREVIEW_S = 3.0  # a preview is not held up by a resolver that says nothing
INSIDE_S = 10.0
SHOWN = 5  # failures in a progress line
ROOT_INGRESS = Ref("v1", "services", "tenant-root", "root-ingress-controller")
SLICES = Ref("discovery.k8s.io/v1", "endpointslices")
DASHBOARD = ("cozy-dashboard", "incloud-web-gatekeeper")
UNWATCHED = frozenset(
    {Reach.REACHED, Reach.REFUSED, Reach.UNREACHABLE}
)  # a way may open late, an answer rarely changes

RCH_001 = Rule(
    "RCH-001",
    WARNING,
    title="Public names resolve to the external addresses",
    why="until they do, no certificates are issued and nobody can open the platform by name",
    remedy="create the records dashboard, api and *.HOST; the install itself does not need them",
)


class ReachInputs(Properties):
    kubeconfig: str = Field(default="", repr=False)
    host: str
    addresses: list[str]  # external addresses of the ingress; none: those its load balancer was given
    public: list[str] = Field(default_factory=list)  # addresses outside a NAT to which names may also lead
    exposed: list[str]  # services that are published; api and dashboard are probed
    oidc: bool = False  # people are sent to keycloak.HOST to log in, so its name is asked as well
    resolver: str = SYSTEM  # this workstation's own; an address plays it on the lab, "" asks for no name at all
    resolvers: list[str] = Field(default_factory=list)  # asked as well; no third party unless the stack names it
    port: int = 443
    checks: Literal["live", "offline"] = "live"
    skipped: str = ""  # why nothing is checked; "" checks
    backend_s: float = BACKEND_S
    deadline_s: float


class ReachOutputs(Properties):
    reached: dict[str, str]  # URL and address -> "HTTP 302"
    dns: dict[str, str]  # name -> "resolved: 10.0.0.11"
    certificates: dict[str, str] = Field(default_factory=dict)  # name -> "trusted: issued by …"
    verdict: str = ""  # "reached", "DNS is wrong: …", or "not checked: …" with the reason of whoever said so
    seconds: int


class ReachabilityProvider(StageProvider[ReachInputs, ReachOutputs]):
    """The dashboard and the API answer at every external address. Where names lead is reported, it decides nothing."""

    inputs = ReachInputs
    outputs = ReachOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"host", "addresses", "exposed", "port", "skipped", "oidc"})
    late = frozenset({"kubeconfig"})

    async def preflight(self, new: ReachInputs, known: ReachInputs | None) -> list[Finding]:
        """Where the names lead today, before anything is installed. A domain may be pointed here later: a warning."""
        if _unasked(new) or new.checks == "offline" or not new.addresses:
            return []
        if known is not None and (known.host, known.addresses) == (new.host, new.addresses):
            return []
        found = await ask(_asked(new), _accepted(new, new.addresses), PREVIEW_S)
        return [RCH_001.at(n.name, problem=str(n), fix=n.remedy) for n in found if not n.ok]

    async def establish(self, inputs: ReachInputs, progress: Progress) -> ReachOutputs:
        if why_not := _unasked(inputs):
            progress.say(f"not checked: {why_not}")
            return ReachOutputs(reached={}, dns={}, verdict=f"not checked: {why_not}", seconds=0)
        wait = _Wait(inputs)
        try:
            async with asyncio.timeout(inputs.deadline_s):
                why = await wait.settle(progress)
        except TimeoutError:
            why = f"timed out after {format_seconds(inputs.deadline_s)}"
        found = await _resolved(inputs, wait.seen)
        inside = await _inside(inputs) if why else Inside()
        verdict = blame(wait.seen, found, inside)
        made = _report(wait.seen, found, verdict, round(progress.elapsed.total_seconds()))
        report.add("Reachability", _markdown(made))
        if why:
            raise _unreached(inputs, wait, found, inside, verdict, why)
        for line in _remarks(wait.seen, found):
            progress.say(line)
        progress.say(made.verdict)
        return made

    async def observe(self, inputs: ReachInputs, outputs: ReachOutputs) -> ReachOutputs | None:
        if _unasked(inputs):
            return outputs
        async with budget(call_limit(INSIDE_S), _no_address):
            targets = await _targets(inputs, Progress("Reachability"))
        seen = await probe_all(targets, _cluster_ca(inputs), call_limit(probes.PROBE_S))
        found = await _resolved(inputs, seen)
        inside = Inside() if all(s.ok for s in seen) else await _inside(inputs)
        return _report(seen, found, blame(seen, found, inside), outputs.seconds)


class Reachability(StageResource[ReachInputs], provider=ReachabilityProvider):
    pass


class _Wait:
    """Probes until everything answers, or until more waiting cannot help. `seen` is what was seen last."""

    def __init__(self, inputs: ReachInputs) -> None:
        self._inputs = inputs
        self._since: dict[Endpoint, float] = {}
        self.seen: tuple[EndpointStanding, ...] = ()

    async def settle(self, progress: Progress) -> str:
        """Empty when everything answers; otherwise why waiting on was given up."""
        targets, ca = await _targets(self._inputs, progress), _cluster_ca(self._inputs)
        limit = self._inputs.backend_s
        while True:
            self.seen = await probe_all(targets, ca, call_limit(probes.PROBE_S))
            open_ = [s for s in self.seen if not s.ok]
            if not open_:
                return ""
            stubborn = [s for s in self.seen if self._too_long(s)]
            if stubborn:
                return f"no change for {format_seconds(limit)}"
            progress.say("; ".join(f"{s.target}: {s.words}" for s in open_[:SHOWN]))
            await pause(PROBE_EVERY_S)

    def _too_long(self, standing: EndpointStanding) -> bool:
        """Whether an answer that is none has stood for so long that it will not change by itself."""
        if standing.reach in UNWATCHED:
            self._since.pop(standing.target, None)
            return False
        now = time.monotonic()
        return now - self._since.setdefault(standing.target, now) >= self._inputs.backend_s


def _unasked(inputs: ReachInputs) -> str:
    """Why there is nothing to ask; empty when there is."""
    return inputs.skipped or ("" if published.probed(inputs.exposed) else "neither api nor dashboard is exposed")


# Addresses ----------------------------------------------------------------------------------------------------------


def _given(inputs: ReachInputs, addresses: Sequence[str]) -> list[Endpoint]:
    return targets(inputs.host, inputs.exposed, addresses, inputs.port)


async def _targets(inputs: ReachInputs, progress: Progress) -> list[Endpoint]:
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
            await pause(TICK_S)


async def _balancer(entry: Mapping[str, Any]) -> list[str]:
    """Addresses of one entry of a load balancer's status; some clouds give only a name."""
    if entry.get("ip"):
        return [str(entry["ip"])]
    found = await probes.lookup_here(str(entry["hostname"])) if entry.get("hostname") else None
    return sorted(map(str, found.addresses)) if found else []


def _cluster_ca(inputs: ReachInputs) -> str:
    """PEM of the CA that signs the API server's certificate. Raises BadKubeconfig."""
    return (kubeconfigs.parse(inputs.kubeconfig).ca_pem or b"").decode()


# Names --------------------------------------------------------------------------------------------------------------


def _accepted(inputs: ReachInputs, addresses: Collection[str]) -> frozenset[Address]:
    return frozenset(ip_address(a) for a in {*addresses, *inputs.public})


def _asked(inputs: ReachInputs) -> Names:
    labels = published.probed(inputs.exposed)
    sign_in = [published.KEYCLOAK] if inputs.oidc and labels else []
    return Names(inputs.host, (*labels, *sign_in), inputs.resolver, tuple(inputs.resolvers))


async def _resolved(inputs: ReachInputs, seen: Sequence[EndpointStanding]) -> tuple[NameStanding, ...]:
    accepted = _accepted(inputs, {str(s.target.address) for s in seen} or inputs.addresses)
    if not accepted:
        return ()
    return await ask_with_fronts(_asked(inputs), seen, accepted, _cluster_ca(inputs), call_limit(probes.PROBE_S))


# The third witness --------------------------------------------------------------------------------------------------


async def _inside(inputs: ReachInputs) -> Inside:
    """What the cluster knows. Every question stands alone: an answer that was not got is unknown."""
    try:
        async with asyncio.timeout(call_limit(INSIDE_S)), Kube.connect(inputs.kubeconfig) as kube:
            ingress = await _ready(kube, ROOT_INGRESS.namespace or "", ROOT_INGRESS.name or "")
            service = await kube.find(ROOT_INGRESS) or {}
            external = frozenset(map(str, (service.get("spec") or {}).get("externalIPs") or ()))
            return Inside(ingress, await _ready(kube, *DASHBOARD), external)
    except (KubeError, kubeconfigs.BadKubeconfig) as error:
        return Inside(trouble=f"the Kubernetes API returned an error: {error}")
    except TimeoutError:
        return Inside(trouble=f"the Kubernetes API did not respond within {format_seconds(INSIDE_S)}")


async def _ready(kube: Kube, namespace: str, service: str) -> int:
    """How many endpoints of a Service are ready; an absent `ready` counts as ready, as Kubernetes defines it."""
    found = await kube.objects(replace(SLICES, namespace=namespace), selector=f"kubernetes.io/service-name={service}")
    endpoints = [e for item in found for e in item.get("endpoints") or ()]
    return sum((e.get("conditions") or {}).get("ready") is not False for e in endpoints)


# Words --------------------------------------------------------------------------------------------------------------


def _report(
    seen: Sequence[EndpointStanding], found: Sequence[NameStanding], verdict: Blame, seconds: int
) -> ReachOutputs:
    wrong = ", ".join(f"{n.name} {n.dns.value}" for n in found if not n.ok)
    return ReachOutputs(
        reached={str(s.target): s.words for s in seen},
        dns={n.name: str(n) for n in found},
        certificates={name: str(trust) for name, trust in _certificates(seen).items()},
        verdict=f"{verdict.cause.value}: {wrong}" if verdict.cause is Cause.NAMES else verdict.cause.value,
        seconds=seconds,
    )


def _certificates(seen: Sequence[EndpointStanding]) -> dict[str, served.TrustStanding]:
    """Of the names whose certificate is for browsers; the API's is signed by the cluster and judged by the probe."""
    now = datetime.now(UTC)
    browsed = [s for s in seen if not s.target.passthrough]
    return {s.target.name: served.judge_trust(s.target.name, s.served, now) for s in browsed if s.served}


def _remarks(seen: Sequence[EndpointStanding], found: Sequence[NameStanding]) -> list[str]:
    """What stops nothing and somebody should know."""
    wrong = [f"{n.name} {n}; {n.remedy}" for n in found if not n.ok]
    shown = _certificates(seen).items()
    return wrong + [f"certificate of {name} {trust}; {trust.remedy}" for name, trust in shown if not trust.ok]


def _markdown(made: ReachOutputs) -> str:
    rows = [
        *made.reached.items(),
        *made.dns.items(),
        *((f"certificate of {n}", w) for n, w in made.certificates.items()),
    ]
    lines = ["| check | result from here |", "|---|---|", *(table_row(row) for row in rows)]
    return "\n".join([f"**{made.verdict}**", "", *lines])


def _no_address() -> StageFailed:
    return StageFailed(
        "The public address of the platform is unknown.",
        details={"asked": f"{ROOT_INGRESS}, for {format_seconds(INSIDE_S)}"},
        means="its load balancer has no address, or the Kubernetes API does not respond; nothing was changed",
        next_step="check `kubectl -n tenant-root get svc root-ingress-controller`, then run the refresh again",
    )


def _unreached(
    inputs: ReachInputs,
    wait: _Wait,
    found: Sequence[NameStanding],
    inside: Inside,
    verdict: Blame,
    why: str,
) -> StageFailed:
    details = {str(s.target): f"{s.words}\n{s.means}".strip() for s in wait.seen if not s.ok}
    details |= {n.name: str(n) for n in found if not n.ok}
    details["seen from inside"] = str(inside)
    if not wait.seen:
        details["last seen"] = "the load balancer has no address" if not inputs.addresses else "no answer yet"
    skip = (
        "; if the site cannot be reached from here by design, skip this check (publishing.reachability, with a reason)"
    )
    return StageFailed(
        f"{verdict.headline[:-1]}: {inputs.host}, {why}.",
        details=details,
        means=verdict.means,
        next_step="\n".join(
            [
                *(verdict.next_steps or ("check the addresses",)),
                "then run `pulumi up` again" + (skip if verdict.cause is not Cause.PLATFORM else ""),
            ]
        ),
    )
