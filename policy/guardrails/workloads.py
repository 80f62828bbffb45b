"""No privileged workload outside the storage namespace, by the measure of Kubernetes' own Pod Security level "baseline"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from policy.guardrails.values import Statement, Unknown, Unverified, Violation, at, entries, is_on

STORAGE_NAMESPACE = "cozy-storage-bootstrap"  # the zpool jobs need the machine's disks
ENFORCE = "pod-security.kubernetes.io/enforce"

# It carries the API's address to every node of a generic cluster, so it has to listen on the host; nothing else.
EXCEPTIONS: frozenset[tuple[str, str, str]] = frozenset({("kube-system", "extractedprism", "hostNetwork")})

# https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline
BASELINE_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
BASELINE_SYSCTLS = frozenset(
    [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    ]
)
SELINUX_TYPES = frozenset({None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})

_POD_SPEC: dict[str, tuple[str, ...]] = {
    "Pod": ("spec",),
    "PodTemplate": ("template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    **dict.fromkeys(
        ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "ReplicationController", "Job"),
        ("spec", "template", "spec"),
    ),
}
_TOKEN = re.compile(r"^kubernetes:(?:core|apps|batch|extensions)/[^:]+:(\w+?)(List)?(Patch)?$")


def judge(token: str, props: Any) -> Iterator[Statement]:
    """Everything a Kubernetes object asks for that only the storage namespace may have."""
    match = _TOKEN.match(token)
    if not match:
        return
    kind, is_list = match[1], bool(match[2])
    objects = list(entries(at(props, "items"))) if is_list else [props]
    for obj in objects:
        if kind == "Namespace":
            yield from _namespace(obj)
        elif kind in _POD_SPEC:
            yield from _workload(kind, obj)


def _namespace(obj: Any) -> Iterator[Statement]:
    name, level = at(obj, "metadata", "name"), at(obj, "metadata", "labels", ENFORCE)
    if name == STORAGE_NAMESPACE or (isinstance(level, str) and level != "privileged") or level is None:
        return
    if isinstance(level, Unknown) or isinstance(name, Unknown):
        yield Unverified(f"{level.path if isinstance(level, Unknown) else 'metadata.name'} is not known yet")
        return
    yield Violation(
        f"namespace {name} would allow privileged pods; only {STORAGE_NAMESPACE} may. Remove the label "
        f"{ENFORCE}: the Cozystack operator labels its own namespaces."
    )


def _workload(kind: str, obj: Any) -> Iterator[Statement]:
    namespace, name = at(obj, "metadata", "namespace"), at(obj, "metadata", "name")
    if namespace == STORAGE_NAMESPACE:
        return
    title = f"{kind} {_word(namespace, 'the default namespace')}/{_word(name, 'unnamed')}"
    for statement in dict.fromkeys(asks(at(obj, *_POD_SPEC[kind]))):
        if isinstance(statement, Unknown):
            yield Unverified(f"{title}: {statement.path} is not known yet")
        elif (namespace, name, statement) in EXCEPTIONS:
            continue
        elif isinstance(namespace, Unknown):
            yield Unverified(f"{title} requests {statement}, but its namespace is not known yet")
        else:
            yield Violation(
                f"{title} requests {statement}, but privileged workloads are allowed in "
                f"{STORAGE_NAMESPACE} only. Remove it, or do the work in a job of that namespace."
            )


def _word(value: Any, absent: str) -> str:
    return "(not known yet)" if isinstance(value, Unknown) else str(value or absent)


def asks(spec: Any) -> Iterator[str | Unknown]:
    """What a pod asks for beyond the baseline, each by the field's name; unknown fields that could hide something."""
    if isinstance(spec, Unknown):
        yield spec
        return
    for field in ("hostPID", "hostIPC", "hostNetwork"):
        yield from _switch(at(spec, field), field)
    for volume in entries(at(spec, "volumes")):
        path = volume if isinstance(volume, Unknown) else at(volume, "hostPath")
        if isinstance(path, Unknown):
            yield path
        elif path is not None:
            yield f"hostPath {_word(at(path, 'path'), '?')}"
    yield from _security(at(spec, "securityContext"), "")
    for sysctl in entries(at(spec, "securityContext", "sysctls")):
        setting = at(sysctl, "name")
        if isinstance(setting, Unknown):
            yield setting
        elif setting not in BASELINE_SYSCTLS:
            yield f"sysctl {setting}"
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for container in entries(at(spec, group)):
            yield from _container(container)


def _container(container: Any) -> Iterator[str | Unknown]:
    if isinstance(container, Unknown):
        yield container
        return
    of = f" in container {_word(at(container, 'name'), '?')}"
    security = at(container, "securityContext")
    yield from _security(security, of)
    yield from _switch(at(security, "privileged"), f"privileged{of}")
    mount = at(security, "procMount")
    if isinstance(mount, Unknown) or mount not in (None, "", "Default"):
        yield mount if isinstance(mount, Unknown) else f"procMount {mount}{of}"
    for capability in entries(at(security, "capabilities", "add")):
        if isinstance(capability, Unknown):
            yield capability
        elif str(capability).upper().removeprefix("CAP_") not in BASELINE_CAPABILITIES:
            yield f"capability {capability}{of}"
    for port in entries(at(container, "ports")):
        host_port = at(port, "hostPort")
        if isinstance(host_port, Unknown):
            yield host_port
        elif host_port:
            yield f"hostPort {_number(host_port)}{of}"


def _number(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)  # the engine hands every number on as a float


def _security(context: Any, of: str) -> Iterator[str | Unknown]:
    """What a pod and a container can both say in their securityContext."""
    if isinstance(context, Unknown):
        yield context
        return
    yield from _switch(at(context, "windowsOptions", "hostProcess"), f"hostProcess{of}")
    for profile in ("seccompProfile", "appArmorProfile"):
        kind = at(context, profile, "type")
        if isinstance(kind, Unknown):
            yield kind
        elif kind == "Unconfined":
            yield f"{profile} Unconfined{of}"
    kind = at(context, "seLinuxOptions", "type")
    if isinstance(kind, Unknown):
        yield kind
    elif kind not in SELINUX_TYPES:
        yield f"seLinuxOptions {kind}{of}"


def _switch(value: Any, name: str) -> Iterator[str | Unknown]:
    if isinstance(value, Unknown):
        yield value
    elif is_on(value):
        yield name
