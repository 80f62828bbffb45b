"""Whatever disks there are and whatever is approved: no other disk passes the gate, and no other is ever named in a Job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pulumi
from hypothesis import given, settings
from hypothesis import strategies as st

from cozystack_iac.components.zfs_pool_job import pool_plan
from cozystack_iac.findings import Verdict
from cozystack_iac.settings import Site
from cozystack_iac.storage import ledger, zfs
from cozystack_iac.talos.machine import ReportedDisk
from tests.matrix import examples
from tests.sites import changed, codes, good, judged, site_of

# Few and similar names, so that they collide: with each other, with another disk's name of another kind, with themselves.
NAMES = ("A", "A1", "a", "naa.1", "B", "naa.11", "wwn-0x1", "")
BY_ID = "/dev/disk/by-id/"
GIB = 1024**3


@dataclass(frozen=True)
class World:
    """A stack file's view of the disks of cp1, and the disks that are really in it."""

    data: list[dict[str, str]]
    approved: list[str]
    disks: list[ReportedDisk]
    layout: str


@st.composite
def machine_disks(draw: st.DrawFn) -> list[ReportedDisk]:
    disks = []
    for number in range(draw(st.integers(1, 4))):
        name = f"sd{'abcd'[number]}"
        own = st.one_of(
            st.just(f"{NAMES[number]}{number}"), st.just(f"{NAMES[number]}{number}"), st.sampled_from(NAMES)
        )
        links = draw(st.lists(own.filter(bool), max_size=2, unique=True))
        disks.append(
            ReportedDisk(
                name,
                f"/dev/{name}",
                size_bytes=200 * GIB,
                serial=draw(own),
                wwid=draw(own),
                bus_path=draw(st.sampled_from(["/pci0"] * 5 + ["/virtual"])),
                symlinks=tuple(f"{BY_ID}{link}" for link in links),
            )
        )
    return disks


def names_of(disk: ReportedDisk) -> list[tuple[str, str]]:
    """Every way to name a disk in a stack file."""
    links = [("byId", link.removeprefix(BY_ID)) for link in disk.symlinks]
    return [(kind, value) for kind, value in (("serial", disk.serial), ("wwid", disk.wwid), *links) if value]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Mostly what a careful person writes about the disks that are there, with slips in any place."""
    disks = draw(machine_disks())
    chosen = draw(st.lists(st.sampled_from(disks), min_size=1, max_size=3))
    slip = st.sampled_from([False] * 9 + [True])
    anything = st.tuples(st.sampled_from(["serial", "wwid", "byId"]), st.sampled_from([name for name in NAMES if name]))
    data: list[dict[str, str]] = []
    approved: list[str] = []
    for disk in chosen:
        own = st.sampled_from(names_of(disk)) if names_of(disk) else anything
        data.append(dict(draw(st.lists(anything if draw(slip) else own, min_size=1, max_size=2))))
        prefix = draw(st.sampled_from(["", "", BY_ID]))
        approved += [] if draw(slip) else [prefix + draw(anything if draw(slip) else own)[1]]
    return World(data, approved, disks, {1: "single", 2: "mirror", 3: "raidz1"}[len(chosen)])


def stack_file(world: World) -> dict[str, Any]:
    return changed(
        good(),
        ("nodes.0.dataDisks", world.data),
        ("nodes.0.layout", world.layout),
        ("nodes.0.installDisk", {"serial": "SYSTEM"}),
        ("storage.approvedDisks.cp1", world.approved),
    )


def gate(site: Site, disks: list[ReportedDisk]) -> Verdict:
    """What the ledger says about cp1 when its machine has these disks."""
    node, approved = site.nodes[0], site.storage.approved_disks.get("cp1", ())
    return Verdict.of(ledger.judge_entries(ledger.entries("cp1", "cp1", node.data_disks, approved, disks), {}))


def bearers(named: str, disks: list[ReportedDisk]) -> list[ReportedDisk]:
    """The disks that carry every identity of one line of a Job, by brute force."""
    wanted = {tuple(identity.split("=", 1)) for identity in named.split("\t")}
    return [disk for disk in disks if wanted <= set(names_of(disk)) and disk.bus_path != "/virtual"]


def job_disks(site: Site) -> list[str]:
    """What the Job of cp1 is told to write to."""
    container = zfs.job(pool_plan(site, site.nodes[0]), "image")["spec"]["template"]["spec"]["containers"][0]
    return str({entry["name"]: entry["value"] for entry in container["env"]}["DISKS"]).split("\n")


def named_without_approval(site: Site, approved: list[str], disks: list[ReportedDisk]) -> list[str]:
    """Identities in the Job of cp1 that lead to a disk nobody has approved. One that leads to several is refused there."""
    allowed = {text.removeprefix(BY_ID) for text in approved if text}
    wrong = []
    for identity in job_disks(site):
        found = bearers(identity, disks)
        assert found, "the gate let an identity through that no disk has"
        if len(found) == 1 and allowed.isdisjoint(value for _, value in names_of(found[0])):
            wrong.append(identity)
    return wrong


@settings(max_examples=examples(150))
@given(worlds())
def test_what_passes_is_approved_and_is_the_very_disk_that_the_job_names(world: World) -> None:
    raw = stack_file(world)
    if judged(raw).blocking or gate(site_of(raw), world.disks).blocking:
        return
    assert named_without_approval(site_of(raw), world.approved, world.disks) == []


@settings(max_examples=examples(150))
@given(worlds(), st.data())
def test_disks_that_change_between_plan_and_apply_pass_only_as_the_approved_ones(
    world: World, data: st.DataObject
) -> None:
    raw = stack_file(world)
    if judged(raw).blocking or gate(site_of(raw), world.disks).blocking:
        return
    later = data.draw(st.permutations(world.disks))
    if data.draw(st.booleans()):
        later[0] = data.draw(machine_disks())[0]
    renamed = [replace(disk, name=f"sd{'wxyz'[n]}", path=f"/dev/sd{'wxyz'[n]}") for n, disk in enumerate(later)]
    if not gate(site_of(raw), renamed).blocking:
        assert named_without_approval(site_of(raw), world.approved, renamed) == []


@settings(max_examples=examples(60))
@given(worlds())
def test_nothing_approved_means_that_nothing_passes(world: World) -> None:
    raw = changed(stack_file(world), ("storage.approvedDisks.cp1", []))
    assert "STO-008" in codes(judged(raw))
    assert gate(site_of(raw), world.disks).blocking or not world.disks


@settings(max_examples=examples(60))
@given(worlds())
def test_a_job_can_only_name_what_the_stack_file_names(world: World) -> None:
    raw = stack_file(world)
    if judged(raw).blocking:
        return
    named = {f"{kind}={value}" for disk in world.data for kind, value in disk.items()}
    try:
        told = {identity for line in job_disks(site_of(raw)) for identity in line.split("\t")}
        assert told <= named
    except pulumi.RunError as refusal:
        assert "cannot be named" in str(refusal)
