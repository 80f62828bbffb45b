"""What in the machines' documents cannot work, or contradicts what Cozystack needs. Pure; every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cozystack_iac import releases
from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.settings import Node, Site
from cozystack_iac.settings.paths import Step
from cozystack_iac.talos.documents import install, kinds, own_patches
from cozystack_iac.talos.documents.leaves import DELETE, flatten, identity, spelled
from cozystack_iac.talos.documents.subject import MULTIDOC_ALL, MULTIDOC_NETWORK, Subject, UnsupportedTalos
from cozystack_iac.yaml_text import Document

MCF_001 = Rule(
    "MCF-001",
    ERROR,
    title="Links with static addresses or VIPs are named",
    why="without a link name, no interface gets the static addresses or the VIP",
    remedy="set the node's link",
)
MCF_002 = Rule(
    "MCF-002",
    ERROR,
    title="This Talos version can select the install disk",
    why="up to 1.13, Talos has no selector expressions for the install disk and would install on the default "
    "disk instead",
    remedy="identify the disk by wwid, serial or byId",
)
MCF_003 = Rule(
    "MCF-003",
    ERROR,
    title="Patches use documents that this Talos version supports",
    why="a single unknown kind makes Talos reject the whole configuration",
    remedy="write the setting in the format of the site's Talos version",
)
MCF_004 = Rule(
    "MCF-004",
    ERROR,
    title="Every setting is written in one format",
    why="Talos rejects a configuration that has both an old key and the document that replaced it",
    remedy="use the document",
)
MCF_005 = Rule(
    "MCF-005",
    WARNING,
    title="Patches keep the values that Cozystack needs",
    why="patches are merged last and win, but Cozystack and its storage depend on this value",
    remedy="remove it from the patch, or use the matching key of the stack file",
)
MCF_006 = Rule(
    "MCF-006",
    ERROR,
    title="Patches delete only documents that exist",
    why="up to 1.13, Talos crashes when a patch deletes a missing document",
    remedy="remove the deletion",
)
MCF_007 = Rule(
    "MCF-007",
    ERROR,
    title="Before Talos 1.12, an interface has only one VIP",
    why="the old network format has room for one VIP only, so the second one would be silently dropped",
    remedy="move the VIP to another link, or use Talos 1.12 or later",
)
MCF_008 = Rule(
    "MCF-008",
    ERROR,
    title="The installer image is known",
    why="the generated configuration would use the plain Talos image, which has neither DRBD nor ZFS",
    remedy="make the profile readable, or set talos.image.reference",
)
MCF_009 = Rule(
    "MCF-009",
    ERROR,
    title="The site's Talos version is supported",
    why="configuration keys differ between Talos versions, and a single unknown key makes a machine reject "
    "its configuration",
    remedy=f"use Talos {releases.TALOS_VERSIONS}",
)
MCF_010 = Rule(
    "MCF-010",
    ERROR,
    title="The host name is the node name in the inventory",
    why="later stages look for the node by its inventory name and would never find it",
    remedy="rename the node in the inventory",
)


@dataclass(frozen=True)
class _Patch:
    """A user's document and where it stands."""

    document: Document
    steps: tuple[Step, ...]
    only: Node | None
    """The machine it is for; None: all."""


def findings(site: Site) -> Iterator[Finding]:
    """Every problem of the site's machine configurations. Nothing for clusters that others configure."""
    if site.existing or not site.nodes:
        return
    try:
        subjects = [Subject.of(site, node) for node in site.nodes]
    except UnsupportedTalos as error:
        fix = f"set talos.version to {releases.TALOS_VERSIONS}"
        yield MCF_009.at(site.where("talos", "version"), problem=str(error), fix=fix)
        return
    for position, subject in enumerate(subjects):
        yield from _machine(position, subject)
    yield from _images(site, subjects)
    own = {subject.node.name: flatten(own_patches(site, subject.node)) for subject in subjects}
    for patch in _patches(site):
        yield from _form(site, subjects[0].minor, patch)
        yield from _deletion(site, subjects, own, patch)
        yield from _overrides(site, own, patch)


def _machine(position: int, subject: Subject) -> Iterator[Finding]:
    site, node = subject.site, subject.node
    needs = [f"address {address}" for address in node.addresses] if not subject.link else []
    needs += [f"VIP {address}" for address, link in subject.vips if not link]
    if needs:
        where, fix = site.where("nodes", position, "link"), f"set nodes[{position}].link, for example to eth0"
        yield MCF_001.at(where, problem=f"{node.name} has {', '.join(needs)}, but its link is not set", fix=fix)
    if (
        node.install_disk is not None
        and node.install_disk.selector
        and not install.expressible(node.install_disk, subject.minor)
    ):
        where = site.where("nodes", position, "installDisk", "selector")
        problem = f"{node.name}'s install disk is a selector expression, but the site runs Talos 1.{subject.minor}"
        yield MCF_002.at(where, problem=problem, fix="set wwid, serial or byId in installDisk")
    if subject.minor < MULTIDOC_NETWORK:
        links = [link for _, link in subject.vips if link]
        for link in dict.fromkeys(link for link in links if links.count(link) > 1):
            several = [address for address, on in subject.vips if on == link]
            problem = f"{node.name} would have {' and '.join(several)} on {link}"
            fix = "move one of them to another link, or use Talos 1.12 or later"
            yield MCF_007.at(site.where("nodes", position, "vips"), problem=problem, fix=fix)


def _images(site: Site, subjects: Sequence[Subject]) -> Iterator[Finding]:
    without = [subject.node.name for subject in subjects if subject.image is None]
    if without:
        problem = (
            f"the installer image is unknown for {', '.join(without[:3])}{' and others' if len(without) > 3 else ''}"
        )
        fix = "make talos.image.profile readable, or set talos.image.reference"
        yield MCF_008.at(site.where("talos", "image"), problem=problem, fix=fix)


def _patches(site: Site) -> Iterator[_Patch]:
    for number, document in enumerate(site.talos.patches):
        yield _Patch(document, ("talos", "patches", number), None)
    for position, node in enumerate(site.nodes):
        for number, document in enumerate(node.patches):
            yield _Patch(document, ("nodes", position, "patches", number), node)


def _form(site: Site, minor: int, patch: _Patch) -> Iterator[Finding]:
    where = site.where(*patch.steps)
    kind = patch.document.get("kind")
    if kind:
        since = kinds.SINCE.get(str(kind))
        if since is not None and since > minor:
            problem = f"{kind} needs Talos 1.{since} or later, but the site runs Talos 1.{minor}"
            yield MCF_003.at(where, problem=problem, fix="use the older format, or remove it")
        wrong = [key for key in ("metadata", "spec") if key in patch.document]
        if wrong:
            problem = f"{kind} has {' and '.join(wrong)}, but Talos documents have no such fields"
            yield MCF_003.at(where, problem=problem, fix="move the name and the settings to the top level")
        return
    for path, (since, document) in kinds.MOVED.items():
        if minor >= since and _has(patch.document, path.split(".")):
            problem = f"the patch sets {path}, which Talos 1.{minor} replaces with {document}"
            yield MCF_004.at(where, problem=problem, fix=f"set it in a {document} document")
    # Up to 1.13 the base has no ResolverConfig; ours comes with talos.nameservers.
    resolver = MULTIDOC_NETWORK <= minor < MULTIDOC_ALL and bool(site.talos.nameservers)
    if resolver and _has(patch.document, ["machine", "network", "nameservers"]):
        problem = "the patch sets machine.network.nameservers, but talos.nameservers already creates a ResolverConfig"
        yield MCF_004.at(where, problem=problem, fix="use only one of them, preferably talos.nameservers")


def _deletion(
    site: Site, subjects: Sequence[Subject], own: Mapping[str, Mapping[tuple[str, ...], Any]], patch: _Patch
) -> Iterator[Finding]:
    if patch.document.get(DELETE) != "delete" or not patch.document.get("kind"):
        return
    who, kind = identity(patch.document), str(patch.document["kind"])
    missing = [
        subject.node.name
        for subject in subjects
        if patch.only in (None, subject.node)
        and subject.minor < MULTIDOC_ALL
        and kind not in kinds.generated(subject.minor, control_plane=subject.control_plane)
        and not any(path[0] == who for path in own[subject.node.name])
    ]
    if missing:
        problem = f"the patch deletes {who}, but there is no such document on {', '.join(missing[:3])}"
        yield MCF_006.at(site.where(*patch.steps), problem=problem, fix="remove the deletion")


def _overrides(site: Site, own: Mapping[str, Mapping[tuple[str, ...], Any]], patch: _Patch) -> Iterator[Finding]:
    """Settings of ours that the patch changes. Lists are appended, so only single values can be overridden."""
    nodes = [patch.only] if patch.only is not None else list(site.nodes)
    for path, value in flatten([patch.document]).items():
        if isinstance(value, list) and not path[-1].endswith("Subnets"):
            continue
        against = [(node.name, own[node.name][path]) for node in nodes if path in own[node.name]]
        differing = [(name, ours) for name, ours in against if _text(ours) != _text(value)]
        if not differing:
            continue
        name, ours = differing[0]
        if path in (("HostnameConfig", "hostname"), ("", "machine", "network", "hostname")):
            problem = f"the patch renames {name} to {_text(value)}"
            fix = "remove the host name from the patch, or rename the node in the inventory"
            yield MCF_010.at(site.where(*patch.steps), problem=problem, fix=fix)
            continue
        problem = f"{spelled(path)} is changed from {_shown(ours)} to {_shown(value)} on {_listed(differing)}"
        yield MCF_005.at(site.where(*patch.steps), problem=problem, fix=f"remove {spelled(path)} from the patch")


def _has(document: object, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(document, Mapping) or key not in document:
            return False
        document = document[key]
    return True


def _text(value: Any) -> str:
    """Values as Talos compares them: true and "true" are one."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and value.get(DELETE) == "delete":
        return "nothing"
    text = _text(value)
    return "a different text" if "\n" in text else text if len(text) <= 60 else f"{text[:59]}…"


def _listed(differing: Sequence[tuple[str, Any]]) -> str:
    names = [name for name, _ in differing]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
