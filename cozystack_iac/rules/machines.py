"""Machine configuration: images, modules, sysctls, and patches that work against what Cozystack needs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cozystack_iac import releases
from cozystack_iac.findings import ERROR, WARNING, Finding, Rule
from cozystack_iac.rules import patches
from cozystack_iac.rules.patches import inside
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import Step

TAL_001 = Rule(
    "TAL-001",
    ERROR,
    title="Installer images are valid image references",
    why="the machine accepts the value, but the installation fails",
    remedy="write registry/path:tag",
)
TAL_002 = Rule(
    "TAL-002",
    ERROR,
    title="The installer image has one source",
    why="several sources contradict each other",
    remedy="keep only one of fromRelease, reference and profile",
)
TAL_003 = Rule(
    "TAL-003",
    ERROR,
    title="The required extensions are listed",
    why="without the DRBD and ZFS extensions there is no storage; openvswitch is a kernel module, and no "
    "image has it as an extension",
    remedy="remove extensions to use the default",
)
TAL_004 = Rule(
    "TAL-004",
    WARNING,
    title="Every kernel module is listed once",
    why="the second entry overrides the parameters of the first, so DRBD would run without the parameters it needs",
    remedy="remove the duplicate",
)
TAL_005 = Rule(
    "TAL-005",
    ERROR,
    title="Patches do not overwrite files that Cozystack needs",
    why="the last writer wins: LVM would grab DRBD and ZFS devices, or containers would lose access to their devices",
    remedy="use talos.lvmFilter, or remove the file from the patch",
)
TAL_006 = Rule(
    "TAL-006",
    ERROR,
    title="Host names come from the inventory",
    why="the machine rejects a second host name, or registers under a name that the run does not expect",
    remedy="remove the host name from the patch and set the node's name instead",
)
TAL_007 = Rule(
    "TAL-007",
    ERROR,
    title="Sysctl names are valid",
    why="the machine does not boot with a sysctl that does not exist",
    remedy="write a name such as net.core.somaxconn",
)
TAL_008 = Rule(
    "TAL-008",
    ERROR,
    title="LVM ignores DRBD, device-mapper and ZFS volumes",
    why="the host would activate volume groups inside virtual machine disks and keep those disks busy",
    remedy="remove lvmFilter to use the default",
)
TAL_009 = Rule(
    "TAL-009",
    ERROR,
    title="Files are written only where Talos allows it",
    why="`op: create` outside /var fails at every boot, and bootstrap only reports that it is not available yet",
    remedy="use `op: overwrite`, or a path in /var",
)
TAL_010 = Rule(
    "TAL-010",
    ERROR,
    title="Patches do not change the cluster's identity or foundations",
    why="the machine would no longer belong to this cluster, or Cozystack's network and storage would not start",
    remedy="remove the setting from the patch; most of these have a key in the stack file",
)
TAL_011 = Rule(
    "TAL-011",
    ERROR,
    title="Patches match the Talos minor version of the configuration",
    why="the machine rejects documents it does not know and settings that appear in both the old and the new form",
    remedy="write the patch for that Talos minor version",
)
TAL_012 = Rule(
    "TAL-012",
    WARNING,
    title="Machine settings are used on Talos clusters only",
    why="the machines of an existing cluster are not configured by this stack, so the setting has no effect",
    remedy="remove the setting",
)

BUILT_IN_MODULES = ("openvswitch", "drbd", "zfs", "spl", "vfio_pci", "vfio_iommu_type1")  # Cozystack's preset
NEEDED_EXTENSIONS = frozenset({"drbd", "zfs"})
_NEEDED_FILTERS = ("/dev/drbd", "/dev/dm-", "/dev/zd")
_OWN_FILES = frozenset({"/etc/lvm/lvm.conf", "/etc/cri/conf.d/20-customization.part"})
_CREATABLE = "/etc/cri/conf.d/20-customization.part"  # the one file outside /var Talos lets a config create
_IMAGE = re.compile(
    r"^(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::\d{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?$",
    re.ASCII,
)
_SYSCTL = re.compile(r"^[a-z0-9_]+(?:[./][A-Za-z0-9_:*-]+)+$", re.ASCII)
_IDENTITY = (
    ("machine", "token"),
    ("machine", "ca"),
    ("cluster", "id"),
    ("cluster", "secret"),
    ("cluster", "token"),
    ("cluster", "ca"),
    ("cluster", "aggregatorCA"),
    ("cluster", "serviceAccount"),
    ("cluster", "secretboxEncryptionSecret"),
    ("cluster", "etcd", "ca"),
    ("cluster", "controlPlane", "endpoint"),
    ("cluster", "clusterName"),
    ("machine", "type"),
    ("machine", "install", "disk"),
    ("machine", "install", "diskSelector"),
    ("cluster", "network", "podSubnets"),
    ("cluster", "network", "serviceSubnets"),
    ("cluster", "network", "dnsDomain"),
)


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about machine configurations."""
    site = survey.site
    yield from _images(site)
    yield from _extensions(site)
    yield from _modules(site)
    yield from _sysctls(site)
    yield from _filter(site)
    yield from _unused(site)
    for index, patch in enumerate(site.talos.patches):
        yield from _patch(site, ("talos", "patches", index), patch)
    for position, node in enumerate(site.nodes):
        for index, patch in enumerate(node.patches):
            yield from _patch(site, ("nodes", position, "patches", index), patch)


def _images(site: Site) -> Iterator[Finding]:
    image = site.talos.image
    named: list[tuple[tuple[Step, ...], str | None]] = [
        (("talos", "image", "reference"), image.reference),
        (("storage", "jobImage"), site.storage.job_image),
    ]
    named += [(("nodes", position, "image"), node.image) for position, node in enumerate(site.nodes)]
    for steps, text in named:
        if text is not None and (len(text) > 300 or not _IMAGE.match(text)):
            fix = f"write, for example, {releases.TALOS_IMAGE}:{site.talos_version or 'v1.13.6'}"
            yield TAL_001.at(site.where(*steps), problem=f"`{short(text)}` is not a valid image reference", fix=fix)
    explicit = "from_release" in image.model_fields_set and image.from_release
    sources = [
        name
        for name, used in (("fromRelease", explicit), ("reference", image.reference), ("profile", image.profile))
        if used
    ]
    if len(sources) > 1 or not (image.from_release or image.reference or image.profile):
        problem = f"more than one source is set: {' and '.join(sources)}" if sources else "no image source is set"
        yield TAL_002.at(
            site.where("talos", "image"), problem=problem, fix="keep exactly one of fromRelease, reference and profile"
        )


def _extensions(site: Site) -> Iterator[Finding]:
    path, given = site.where("talos", "extensions"), set(site.talos.extensions)
    missing = sorted(NEEDED_EXTENSIONS - given)
    if missing and not site.existing and not site.partly_unread("talos", "extensions"):
        yield TAL_003.at(
            path,
            problem=f"the list of extensions lacks {' and '.join(missing)}",
            fix="remove extensions to use the default",
        )
    if "openvswitch" in given:
        problem = "openvswitch is listed as an extension, but it is a kernel module"
        yield TAL_003.at(path, problem=problem, fix="remove it; the kernel module is loaded anyway")


def _modules(site: Site) -> Iterator[Finding]:
    lists: list[tuple[tuple[Step, ...], tuple[str, ...]]] = [(("talos", "kernelModules"), site.talos.kernel_modules)]
    lists += [(("nodes", position, "kernelModules"), node.kernel_modules) for position, node in enumerate(site.nodes)]
    for steps, names in lists:
        seen = Counter(BUILT_IN_MODULES)
        if steps[0] == "nodes":
            seen.update(site.talos.kernel_modules)
        for index, name in enumerate(names):
            if name and seen[name]:
                own = " (Cozystack's preset loads it)" if name in BUILT_IN_MODULES else ""
                yield TAL_004.at(
                    site.where(*steps, index), problem=f"{short(name)} is listed twice{own}", fix="remove the duplicate"
                )
            seen[name] += 1


def _sysctls(site: Site) -> Iterator[Finding]:
    maps: list[tuple[tuple[Step, ...], Mapping[str, str]]] = [(("talos", "sysctls"), site.talos.sysctls)]
    maps += [(("nodes", position, "sysctls"), node.sysctls) for position, node in enumerate(site.nodes) if node.sysctls]
    for steps, sysctls in maps:
        for name, value in sysctls.items():
            if len(name) > 200 or not _SYSCTL.match(name) or not value.strip():
                problem = (
                    f"`{short(name)}` is not a valid sysctl name" if value.strip() else f"{short(name)} has no value"
                )
                yield TAL_007.at(
                    site.where(*steps, name),
                    problem=problem,
                    fix="write a name and a value, for example net.core.somaxconn",
                )


def _filter(site: Site) -> Iterator[Finding]:
    rejects = [entry for entry in site.talos.lvm_filter if entry.startswith("r|")]
    missing = [device for device in _NEEDED_FILTERS if not any(device in entry for entry in rejects)]
    if missing and not site.partly_unread("talos", "lvmFilter"):
        path = site.where("talos", "lvmFilter")
        yield TAL_008.at(
            path, problem=f"no filter entry rejects {', '.join(missing)}", fix="remove lvmFilter to use the default"
        )


def _unused(site: Site) -> Iterator[Finding]:
    if not site.existing:
        return
    for key in ("patches", "image", "version", "kernelModules", "sysctls"):
        if site.given("talos", key):
            path = site.where("talos", key)
            yield TAL_012.at(path, problem=f"talos.{key} is set on a {site.cluster.variant} cluster", fix="remove it")


# Patches ----------------------------------------------------------------------------------------------------------------


def _patch(site: Site, steps: tuple[Step, ...], patch: Mapping[str, Any]) -> Iterator[Finding]:
    path = site.where(*steps)
    yield from _patched_files(path, patch)
    yield from _patched_modules(path, patch)
    yield from _patched_hostname(path, patch)
    yield from _patched_identity(path, patch)
    yield from _patched_form(site, path, patch)


def _patched_files(path: str, patch: Mapping[str, Any]) -> Iterator[Finding]:
    for name, operation in patches.files(patch):
        if name in _OWN_FILES:
            fix = "use talos.lvmFilter" if name.endswith("lvm.conf") else "remove the file"
            yield TAL_005.at(path, problem=f"the patch writes {name}, which Cozystack's preset also writes", fix=fix)
        elif operation == "create" and not name.startswith("/var/") and name != _CREATABLE:
            problem = f"the patch creates {short(name)} outside /var"
            yield TAL_009.at(path, problem=problem, fix="use `op: overwrite`, or a path in /var")


def _patched_modules(path: str, patch: Mapping[str, Any]) -> Iterator[Finding]:
    names = Counter(patches.modules(patch))
    for name, times in names.items():
        if name in BUILT_IN_MODULES or times > 1:
            problem = f"the patch loads {short(name)}, which is already loaded"
            yield TAL_004.at(path, problem=problem, fix="remove it from the patch")


def _patched_hostname(path: str, patch: Mapping[str, Any]) -> Iterator[Finding]:
    legacy = inside(patch, "machine", "network", "hostname") is not None
    if legacy or (patches.kind(patch) == "HostnameConfig"):
        form = "machine.network.hostname" if legacy else "HostnameConfig"
        yield TAL_006.at(path, problem=f"the patch sets {form}", fix="remove it; the node's name is its host name")


def _patched_identity(path: str, patch: Mapping[str, Any]) -> Iterator[Finding]:
    for keys in _IDENTITY:
        if inside(patch, *keys) is not None:
            yield TAL_010.at(path, problem=f"the patch sets {'.'.join(keys)}", fix="remove it from the patch")
    foundations: tuple[tuple[tuple[str, ...], object], ...] = (
        (("cluster", "network", "cni", "name"), "none"),
        (("cluster", "proxy", "disabled"), True),
        (("machine", "features", "kubePrism", "enabled"), True),
    )
    for place, needed in foundations:
        value = inside(patch, *place)
        if value is not None and value != needed:
            problem = f"the patch changes {'.'.join(place)}, which must be {str(needed).lower()}"
            yield TAL_010.at(path, problem=problem, fix="remove it from the patch")


def _patched_form(site: Site, path: str, patch: Mapping[str, Any]) -> Iterator[Finding]:
    contract = releases.Version.parse(site.talos_version)
    kind = patches.kind(patch)
    if kind and patch.get("apiVersion") != "v1alpha1":
        problem = f"the {short(kind)} has no `apiVersion: v1alpha1`"
        yield TAL_011.at(path, problem=problem, fix="add `apiVersion: v1alpha1`")
    if kind and (patch.get("metadata") is not None or patch.get("spec") is not None):
        problem = f"the {short(kind)} has metadata or spec, but Talos documents have all fields at the top level"
        yield TAL_011.at(path, problem=problem, fix="move the fields to the top level")
    if contract is None or contract.major != 1:
        return
    if patches.KIND_SINCE.get(kind, 0) > contract.minor:
        problem = f"{kind} needs Talos 1.{patches.KIND_SINCE[kind]} or later, but the configuration is for {contract}"
        yield TAL_011.at(path, problem=problem, fix="use the v1alpha1 keys instead")
    if contract.minor >= 12 and inside(patch, "machine", "network", "interfaces") is not None:
        problem = "the patch uses machine.network.interfaces, which conflicts with the generated network documents"
        yield TAL_011.at(
            path, problem=problem, fix="use LinkConfig, VLANConfig and similar documents", severity=WARNING
        )
    if not kind and not patch.keys() & {"machine", "cluster", "version", "debug", "persist"}:
        problem = "the patch is neither a document with a kind nor a v1alpha1 machine configuration"
        yield TAL_011.at(path, problem=problem, fix="add `kind`, or move the settings below `machine` or `cluster`")
