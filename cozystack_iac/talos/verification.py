"""What a running machine has to be before storage and platform go onto it. Pure: answers in, findings and a matrix out.

Every machine is judged by its own answers, never by those of all together: one good machine must not hide a bad one. An
answer that could not be had is unknown, and unknown fails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.talos import lvm
from cozystack_iac.talos.fleet import MachineRef
from cozystack_iac.talos.machine import Extension, Member, Stage, Status
from cozystack_iac.talos.probe import listed
from cozystack_iac.talos.profile import tuned

OLDEST_DRBD = 9  # LINSTOR needs DRBD 9; the kernel's own module is 8.4
DRBD = "drbd"

VRF_001 = Rule(
    "VRF-001",
    ERROR,
    title="Every machine is running and answers every question",
    why="a missing answer means unknown, not healthy",
    remedy="run `pulumi up` again; if the problem persists, check the machine's console",
)
VRF_002 = Rule(
    "VRF-002",
    ERROR,
    title="The machine runs the pinned Talos version",
    why="the pinned image contains DRBD and ZFS modules built for its kernel; no other version has been tested",
    remedy="run `pulumi up` with Cozystack's image pinned: it upgrades the machine",
)
VRF_003 = Rule(
    "VRF-003",
    ERROR,
    title="All machines run the same Talos version",
    why="different versions differ in kernel, modules and behavior, and fail in different ways",
    remedy="pin one image for all machines",
)
VRF_004 = Rule(
    "VRF-004",
    ERROR,
    title="The machine has the required system extensions",
    why="without them there is no DRBD and no ZFS, so this node cannot provide volumes",
    remedy="run the machine from Cozystack's image",
)
VRF_005 = Rule(
    "VRF-005",
    ERROR,
    title="The kernel modules are loaded",
    why="an extension whose module is not loaded has no effect, and network, storage or virtual machines "
    "would fail much later",
    remedy="look for the module in the machine's dmesg; it is listed in the machine configuration",
)
VRF_006 = Rule(
    "VRF-006",
    ERROR,
    title="The DRBD version is 9 or later",
    why="the kernel's own DRBD 8.4 is loaded, which LINSTOR cannot use",
    remedy="run the machine from Cozystack's image",
)
VRF_007 = Rule(
    "VRF-007",
    ERROR,
    title="LVM ignores DRBD, ZFS and device-mapper devices",
    why="the host's LVM would activate volume groups inside guest volumes, which could then no longer be "
    "detached or deleted",
    remedy="remove the patch that replaces /etc/lvm/lvm.conf",
)
VRF_008 = Rule(
    "VRF-008",
    ERROR,
    title="The machine has its inventory address",
    why="the kubelet, etcd and the other machines expect it at that address",
    remedy="correct internalAddress, or the machine's network",
)
VRF_009 = Rule(
    "VRF-009",
    ERROR,
    title="No VIP is used as a node address",
    why="a VIP moves between machines, and the node or its etcd member would move with it and be lost",
    remedy="exclude the VIP from the kubelet and etcd subnets",
)
VRF_010 = Rule(
    "VRF-010",
    ERROR,
    title="The etcd members are exactly the control plane nodes of this stack",
    why="every extra or missing member changes how many failures etcd tolerates",
    remedy="remove the member that no longer exists, or bring the missing machine back",
)

T = TypeVar("T")


class WantedMachine(BaseModel):
    """What one machine has to run: `talos` the pinned version, `image` the installer it comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    talos: str
    image: str
    extensions: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Unanswered:
    """A question without an answer, and why."""

    why: str


@dataclass(frozen=True)
class SeenMachine:
    """One machine's own answers. `drbd` is None when no DRBD is loaded, `members` None on machines without etcd."""

    machine: MachineRef
    status: Status | Unanswered
    talos: str | Unanswered
    extensions: tuple[Extension, ...] | Unanswered
    modules: frozenset[str] | Unanswered
    drbd: str | Unanswered | None
    lvm_conf: str | Unanswered
    addresses: frozenset[str] | Unanswered
    node_ips: tuple[str, ...] | Unanswered
    members: tuple[Member, ...] | Unanswered | None = None

    @property
    def settled(self) -> bool:
        """Whether the machine has come to rest and said everything: what it says now is what will be true tomorrow."""
        running = isinstance(self.status, Status) and self.status.stage is Stage.RUNNING
        return running and not any(isinstance(answer, Unanswered) for _, answer in _answers(self))


def _answers(seen: SeenMachine) -> tuple[tuple[str, object], ...]:
    return (
        ("its stage", seen.status),
        ("its version", seen.talos),
        ("its extensions", seen.extensions),
        ("its kernel modules", seen.modules),
        ("its DRBD version", seen.drbd),
        ("/etc/lvm/lvm.conf", seen.lvm_conf),
        ("its addresses", seen.addresses),
        ("the kubelet's addresses", seen.node_ips),
        ("the etcd members", seen.members),
    )


def verify(
    seen: Sequence[SeenMachine], wanted: Mapping[str, WantedMachine], virtual: Sequence[str] = ()
) -> list[Finding]:
    """All findings, machine by machine. `virtual`: every virtual address of the site."""
    each = [finding for one in seen for finding in _machine(one, wanted[one.machine.name], frozenset(virtual))]
    return [*each, *_uniform(seen, wanted), *_members(seen)]


def _machine(seen: SeenMachine, wanted: WantedMachine, virtual: frozenset[str]) -> Iterator[Finding]:
    yield from _unknown(seen)
    yield from _version(seen, wanted)
    yield from _extensions(seen, wanted)
    yield from _modules(seen, wanted)
    yield from _lvm(seen)
    yield from _addresses(seen, virtual)


def _unknown(seen: SeenMachine) -> Iterator[Finding]:
    name = seen.machine.name
    reasons: dict[str, list[str]] = defaultdict(list)
    for what, answer in _answers(seen):
        if isinstance(answer, Unanswered):
            reasons[answer.why].append(what)
    for why, topics in reasons.items():
        everything = len(topics) == sum(answer is not None for _, answer in _answers(seen))
        what = "does not respond" if everything else f"does not report {', '.join(topics)}"
        yield VRF_001.at(name, problem=f"{name} ({seen.machine.address}) {what}: {why}", fix="check its console")
    if isinstance(seen.status, Status) and seen.status.stage is not Stage.RUNNING:
        yield VRF_001.at(name, problem=f"{name} is {seen.status}", fix="wait until it is running, or check its console")


def _version(seen: SeenMachine, wanted: WantedMachine) -> Iterator[Finding]:
    if isinstance(seen.talos, Unanswered) or seen.talos == wanted.talos:
        return
    problem = f"{seen.machine.name} runs Talos {seen.talos or 'of unknown version'}, but {wanted.talos} is pinned"
    yield VRF_002.at(seen.machine.name, problem=problem, fix=_way_to_the_image(wanted))


def _extensions(seen: SeenMachine, wanted: WantedMachine) -> Iterator[Finding]:
    if isinstance(seen.extensions, Unanswered):
        return
    if missing := lacking(seen.extensions, wanted):
        present = [e.name for e in seen.extensions if e.name != "modules.dep"]
        problem = f"{seen.machine.name} does not have the extension {', '.join(missing)}; it has {listed(present)}"
        yield VRF_004.at(seen.machine.name, problem=problem, fix=_way_to_the_image(wanted))


def lacking(extensions: Sequence[Extension], wanted: WantedMachine) -> tuple[str, ...]:
    """The wanted extensions that are not there."""
    present = {extension.name for extension in extensions}
    return tuple(name for name in wanted.extensions if name not in present)


def _way_to_the_image(wanted: WantedMachine) -> str:
    if tuned(wanted.image):
        return f"run `pulumi up` again: it upgrades the machine to {wanted.image}"
    return (
        f"pin Cozystack's image (talos.image: {{fromRelease: true}}); currently {wanted.image or 'no image'} is pinned"
    )


def _modules(seen: SeenMachine, wanted: WantedMachine) -> Iterator[Finding]:
    if isinstance(seen.modules, Unanswered):
        return
    name = seen.machine.name
    if missing := [module for module in wanted.modules if module not in seen.modules]:
        extensions = seen.extensions if isinstance(seen.extensions, tuple) else ()
        there = sorted({e.name for e in extensions} & set(missing))
        hint = f", although the extension {', '.join(there)} is installed" if there else ""
        fix = f"look for {missing[0]} in the machine's dmesg, then run `pulumi up` again"
        yield VRF_005.at(name, problem=f"{name} has not loaded {', '.join(missing)}{hint}", fix=fix)
    if DRBD in seen.modules and not isinstance(seen.drbd, Unanswered):
        major = (seen.drbd or "").partition(".")[0]
        if not major.isdecimal() or int(major) < OLDEST_DRBD:
            problem = f"{name} has loaded DRBD {seen.drbd or 'of unknown version'}"
            yield VRF_006.at(name, problem=problem, fix=_way_to_the_image(wanted))


def _lvm(seen: SeenMachine) -> Iterator[Finding]:
    if isinstance(seen.lvm_conf, Unanswered):
        return
    open_ = lvm.let_through(seen.lvm_conf)
    devices = ", ".join(f"/dev/{kind}*" for kind in open_)
    fix = "remove the patch that replaces /etc/lvm/lvm.conf, or complete talos.lvmFilter"
    if open_:
        severity = ERROR if set(open_) & set(lvm.MANDATORY) else WARNING
        problem = f"LVM on {seen.machine.name} would scan {devices}"
        yield VRF_007.at(seen.machine.name, problem=problem, fix=fix, severity=severity)


def _addresses(seen: SeenMachine, virtual: frozenset[str]) -> Iterator[Finding]:
    name, own = seen.machine.name, seen.machine.internal
    if not isinstance(seen.addresses, Unanswered) and own not in seen.addresses:
        problem = f"{name} does not have the address {own}; it has {listed(sorted(seen.addresses - virtual))}"
        yield VRF_008.at(name, problem=problem, fix="correct internalAddress, or the machine's network")
    node_ips = () if isinstance(seen.node_ips, Unanswered) else seen.node_ips
    if taken := [address for address in node_ips if address in virtual]:
        fix = "exclude it from machine.kubelet.nodeIP.validSubnets; a patch overrides the value that this stack sets"
        yield VRF_009.at(name, problem=f"{name} uses the VIP {', '.join(taken)} as its node address", fix=fix)
    elif node_ips and own not in node_ips:
        problem = f"the kubelet on {name} registers {', '.join(node_ips)} instead of {own}"
        yield VRF_008.at(name, problem=problem, fix="correct internalAddress, or nodeCIDR")
    members = seen.members if isinstance(seen.members, tuple) else ()
    for member in members:
        if taken := sorted(member.addresses & virtual):
            fix = "exclude it from cluster.etcd.advertisedSubnets; a patch overrides the value that this stack sets"
            problem = f"etcd on {member.hostname or name} advertises the VIP {', '.join(taken)}"
            yield VRF_009.at(member.hostname or name, problem=problem, fix=fix)


def _uniform(seen: Sequence[SeenMachine], wanted: Mapping[str, WantedMachine]) -> Iterator[Finding]:
    """Machines that run what is pinned for them, and still something else than most; the others were named already."""
    running = {one.machine.name: one.talos for one in seen if isinstance(one.talos, str)}
    most = Counter(running.values()).most_common(1)
    for name, version in running.items():
        if version == wanted[name].talos and version != most[0][0]:
            problem = f"{name} runs Talos {version}, but {most[0][1]} machine(s) run {most[0][0]}"
            yield VRF_003.at(name, problem=problem, fix="pin one image for all machines: remove the node's `image`")


def _members(seen: Sequence[SeenMachine]) -> Iterator[Finding]:
    """etcd against the inventory, as every control plane tells it: they may not agree."""
    planes = [one.machine for one in seen if one.machine.is_control_plane]
    for one in seen:
        if not isinstance(one.members, tuple):
            continue
        strange = [str(m) for m in one.members if not any(m.addresses & plane.addresses for plane in planes)]
        present = [
            plane.name for plane in planes if any(m.votes and m.addresses & plane.addresses for m in one.members)
        ]
        absent = [plane.name for plane in planes if plane.name not in present]
        if strange or absent:
            said = [f"the unknown members {', '.join(strange)}"] if strange else []
            said += [f"no vote from {', '.join(absent)}"] if absent else []
            fix = "remove members that no longer exist, bring missing machines back, then run `pulumi up` again"
            yield VRF_010.at(one.machine.name, problem=f"etcd on {one.machine.name} has {' and '.join(said)}", fix=fix)


# The matrix -------------------------------------------------------------------------------------------------------------

HEAD = ("node", "role", "Talos", "extensions", "modules", "DRBD", "LVM filter", "node address", "verdict")


@dataclass(frozen=True)
class VerificationRow:
    """One machine. All texts; `?` where it did not say."""

    node: str
    role: str
    talos: str
    extensions: str
    modules: str
    drbd: str
    lvm_filter: str
    node_address: str
    verdict: str


def rows(
    seen: Sequence[SeenMachine], wanted: Mapping[str, WantedMachine], findings: Sequence[Finding]
) -> tuple[VerificationRow, ...]:
    """One row per machine, in the order given. `verified` only when nothing blocks and everything was said."""
    return tuple(
        _row(one, wanted[one.machine.name], [f for f in findings if f.path == one.machine.name]) for one in seen
    )


def _row(seen: SeenMachine, wanted: WantedMachine, findings: Sequence[Finding]) -> VerificationRow:
    errors = sorted({finding.code for finding in findings if finding.severity is ERROR})
    warnings = sorted({finding.code for finding in findings if finding.severity is not ERROR})
    good = f"verified ({', '.join(warnings)})" if warnings else "verified"
    return VerificationRow(
        node=seen.machine.name,
        role="control plane" if seen.machine.is_control_plane else "worker",
        talos=_known(seen.talos),
        extensions=_complete(wanted.extensions, _names(seen.extensions)),
        modules=_complete(wanted.modules, seen.modules),
        drbd=_known(seen.drbd),
        lvm_filter=_filter(seen.lvm_conf),
        node_address=_known(seen.node_ips if isinstance(seen.node_ips, Unanswered) else ", ".join(seen.node_ips)),
        verdict=", ".join(errors) if errors else good if seen.settled else "not verified",
    )


def _names(extensions: tuple[Extension, ...] | Unanswered) -> frozenset[str] | Unanswered:
    return extensions if isinstance(extensions, Unanswered) else frozenset(e.name for e in extensions)


def _known(answer: str | Unanswered | None) -> str:
    return "?" if isinstance(answer, Unanswered) else answer or "none"


def _complete(wanted: Sequence[str], present: frozenset[str] | Unanswered) -> str:
    if isinstance(present, Unanswered):
        return "?"
    missing = [name for name in wanted if name not in present]
    return f"no {', '.join(missing)}" if missing else f"all {len(wanted)}"


def _filter(conf: str | Unanswered) -> str:
    if isinstance(conf, Unanswered):
        return "?"
    open_ = lvm.let_through(conf)
    return f"does not filter {', '.join(open_)}" if open_ else "complete"
