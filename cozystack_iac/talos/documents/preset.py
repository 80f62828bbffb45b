"""What Cozystack needs of every machine: values of the `cozystack` preset (talm v0.33.1), shared by all minors."""

from __future__ import annotations

from typing import Any

from cozystack_iac import published
from cozystack_iac.talos.documents.subject import Subject

KUBELET = {"cpuManagerPolicy": "static", "maxPods": 512}
SYSCTLS = {
    "net.ipv4.neigh.default.gc_thresh1": "4096",
    "net.ipv4.neigh.default.gc_thresh2": "8192",
    "net.ipv4.neigh.default.gc_thresh3": "16384",
    "net.ipv4.tcp_orphan_retries": "3",
    "net.ipv4.tcp_fin_timeout": "30",
    "net.core.netdev_max_backlog": "5000",
    "net.core.netdev_budget": "600",
    "net.core.netdev_budget_usecs": "8000",
}
# openvswitch is a module of Talos' own kernel, no extension. DRBD must not call a helper that Talos does not have.
MODULES: dict[str, tuple[str, ...]] = {
    "openvswitch": (),
    "drbd": ("usermode_helper=disabled",),
    "zfs": (),
    "spl": (),
    "vfio_pci": (),
    "vfio_iommu_type1": (),
}
EXCLUDE_LABEL = "node.kubernetes.io/exclude-from-external-load-balancers"
ZONE_LABEL = "topology.kubernetes.io/zone"
OIDC_CLIENT, OIDC_USERNAME, OIDC_GROUPS = "kubernetes", "preferred_username", "groups"
NODE_MASK_IPV4 = 24  # kube-controller-manager's default

CONTAINERD = """\
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    device_ownership_from_security_context = true
  [plugins."io.containerd.cri.v1.runtime"]
    device_ownership_from_security_context = true
"""
# `create` outside /var ends in a boot loop, except for this one path.
CONTAINERD_FILE = {"path": "/etc/cri/conf.d/20-customization.part", "op": "create", "content": CONTAINERD}


def sysctls(subject: Subject) -> dict[str, str]:
    """Kernel parameters; the site's win over the preset, the machine's over both."""
    return SYSCTLS | subject.site.talos.sysctls | subject.node.sysctls


def modules(subject: Subject) -> list[dict[str, Any]]:
    """Kernel modules, each once."""
    names = dict.fromkeys((*MODULES, *subject.site.talos.kernel_modules, *subject.node.kernel_modules))
    found: list[dict[str, Any]] = []
    for name in names:
        parameters = MODULES.get(name, ())
        found.append({"name": name} | ({"parameters": list(parameters)} if parameters else {}))
    return found


def lvm_file(subject: Subject) -> dict[str, Any]:
    """LVM must not touch what DRBD, ZFS and loop devices hold. Permissions as an integer: see `text`."""
    patterns = ", ".join(f'"{pattern}"' for pattern in subject.site.talos.lvm_filter)
    content = f"backup {{\n  backup = 0\n  archive = 0\n}}\ndevices {{\n   global_filter = [ {patterns} ]\n}}\n"
    return {"path": "/etc/lvm/lvm.conf", "op": "overwrite", "permissions": 0o644, "content": content}


def labels(subject: Subject) -> dict[str, Any]:
    """Node labels. Control planes serve load balancers too: the label that keeps them out goes."""
    zone = {ZONE_LABEL: subject.node.zone} if subject.node.zone else {}
    own: dict[str, Any] = zone | subject.node.labels
    return ({EXCLUDE_LABEL: {"$patch": "delete"}} if subject.control_plane else {}) | own


def controller_manager(subject: Subject) -> dict[str, str]:
    """Arguments of kube-controller-manager; its metrics are scraped, and KubeOVN takes pod ranges from the nodes."""
    network = subject.site.network
    arguments = {"bind-address": "0.0.0.0", "allocate-node-cidrs": "true", "cluster-cidr": network.pod_cidr}
    if network.node_mask != NODE_MASK_IPV4:
        arguments["node-cidr-mask-size"] = str(network.node_mask)
    return arguments


def etcd(subject: Subject) -> dict[str, Any]:
    """Settings of etcd: never advertise a virtual address, and room for Cozystack's objects."""
    subnets = {"advertisedSubnets": list(subject.subnets)} if subject.subnets else {}
    return subnets | {"extraArgs": {"quota-backend-bytes": str(subject.site.talos.etcd_quota)}}


def oidc_issuer(subject: Subject) -> str | None:
    """Keycloak's realm, when people log in through it. The API server asks it only when somebody comes."""
    site = subject.site
    host = site.publishing.host
    return f"{published.url(published.KEYCLOAK, host)}/realms/cozy" if site.access.oidc and host else None
