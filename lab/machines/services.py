"""The system services of a machine, derived from its stage. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lab.world import EtcdPhase, MachineState

KUBELET_DOWN = 'Get "http://127.0.0.1:10248/healthz": dial tcp 127.0.0.1:10248: connect: connection refused'
ETCD_WAITS = 'Waiting for service "cri" to be "up", time sync, network, etcd spec'


@dataclass(frozen=True)
class Service:
    """`state` as ServiceList spells it. `events` are (state, message), oldest first."""

    id: str
    state: str = "Running"
    healthy: bool = True
    unknown: bool = False
    message: str = ""
    events: tuple[tuple[str, str], ...] = ()

    @property
    def trouble(self) -> str:
        """How MachineStatus complains about it; empty when it is fine."""
        if self.state != "Running":
            return "not running"
        return "" if self.healthy or self.unknown else "not healthy"


def services(machine: MachineState) -> list[Service]:
    """Sorted by id. In maintenance only what runs without a config."""
    found = [Service("apid"), Service("containerd"), Service("machined"), Service("syslogd"), Service("udevd")]
    if machine.config is None:
        return found
    up = machine.services_up
    found.append(Service("cri", "Running" if up else "Waiting", up, not up))
    found.append(_kubelet(machine))
    if machine.role == "controlplane":
        found += [Service("trustd"), _etcd(machine)]
    return sorted(found, key=lambda service: service.id)


def _kubelet(machine: MachineState) -> Service:
    if not machine.services_up:
        return Service("kubelet", "Waiting", healthy=False, unknown=True)
    # a kubelet without an API server to talk to is up but does not answer its health check
    if machine.role == "controlplane" and machine.etcd is not EtcdPhase.RUNNING:
        return Service("kubelet", healthy=False, message=KUBELET_DOWN)
    return Service("kubelet")


def _etcd(machine: MachineState) -> Service:
    if machine.etcd is EtcdPhase.RUNNING:
        return Service("etcd")
    if machine.etcd is EtcdPhase.LEFT:
        return Service("etcd", "Finished", healthy=False, unknown=True)
    if machine.etcd in (EtcdPhase.STARTING, EtcdPhase.LEARNER):
        return Service("etcd", healthy=False, unknown=machine.etcd is EtcdPhase.STARTING)
    events = (
        (("Waiting", ETCD_WAITS), ("Preparing", "Running pre state"))
        if machine.services_up
        else (("Waiting", ETCD_WAITS),)
    )
    return Service(
        "etcd", "Preparing" if machine.services_up else "Waiting", healthy=False, unknown=True, events=events
    )
