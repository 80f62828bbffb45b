"""What the API server fills in and what it refuses. Pure over what is stored."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cozystack_iac.kube.client import Object, Refused
from lab.memory.kinds import Kind
from lab.platform.objects import NO_DELETE, timestamp

if TYPE_CHECKING:
    from lab.memory.api import MemoryApi

ENFORCE = "pod-security.kubernetes.io/enforce"
EXEMPT = ("kube-system",)  # as Talos configures pod security admission
DEFAULT_LEVEL = "baseline"
GUARDRAIL = "cozystack-no-delete-guardrail"
# Fields of a kind that never change after the object was made, and what the refusal says.
_IMMUTABLE: Mapping[str, Mapping[str, str]] = {
    "Job": {"spec.template": "spec.template: Invalid value: field is immutable"},
    "StorageClass": {
        "parameters": "parameters: Forbidden: updates to parameters are forbidden.",
        "provisioner": "provisioner: Forbidden: updates to provisioner are forbidden.",
        "volumeBindingMode": "volumeBindingMode: Invalid value: field is immutable",
    },
}


def defaulted(kind: Kind, obj: Object) -> Object:
    """What the API server adds to an object of this kind on every write."""
    match kind.name:
        case "Namespace":
            labels = {**(obj["metadata"].get("labels") or {}), "kubernetes.io/metadata.name": obj["metadata"]["name"]}
            return {
                **obj,
                "metadata": {**obj["metadata"], "labels": labels},
                "status": obj.get("status") or {"phase": "Active"},
            }
        case "Secret" if "stringData" in obj:
            data = {key: base64.b64encode(str(v).encode()).decode() for key, v in obj["stringData"].items()}
            rest = {key: value for key, value in obj.items() if key != "stringData"}
            return {**rest, "data": {**(obj.get("data") or {}), **data}, "type": obj.get("type") or "Opaque"}
        case "Pod":
            return {**obj, "status": obj.get("status") or {"phase": "Pending"}}
        case "StorageClass":
            return {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", **obj}
    return obj


def established(crd: Object) -> Object:
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": text, "lastTransitionTime": timestamp()}
        for kind, reason, text in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    return {**crd, "status": {"conditions": conditions, "storedVersions": [], "acceptedNames": crd["spec"]["names"]}}


def admit(api: MemoryApi, kind: Kind, before: Object | None, after: Object) -> None:
    """Raises Refused for a write that may not be."""
    if before is not None:
        for path, text in _IMMUTABLE.get(kind.name, {}).items():
            if _at(before, path) != _at(after, path):
                raise Refused(422, "Invalid", f'{kind.name} "{after["metadata"]["name"]}" is invalid: {text}')
    if kind.name == "Pod" and before is None:
        _pod_security(api, after)


def admit_deletion(api: MemoryApi, obj: Object) -> None:
    """The platform's own guard: nothing that carries the no-delete label can be deleted."""
    guarded = ("", GUARDRAIL) in api.of("validatingadmissionpolicybindings", "admissionregistration.k8s.io")
    if guarded and (obj["metadata"].get("labels") or {}).get(NO_DELETE) == "true":
        name = f'{obj["kind"].lower()}s "{obj["metadata"]["name"]}" is forbidden'
        text = f"Deletion blocked: object carries {NO_DELETE}=true. Remove the label first if this is really meant."
        raise Refused(422, "Invalid", f"{name}: ValidatingAdmissionPolicy '{GUARDRAIL}' denied request: {text}")


def _pod_security(api: MemoryApi, pod: Object) -> None:
    namespace = pod["metadata"]["namespace"]
    space = api.of("namespaces").get(("", namespace)) or {"metadata": {}}
    level = (space["metadata"].get("labels") or {}).get(ENFORCE, DEFAULT_LEVEL)
    wishes = list(_privileges(pod.get("spec") or {}))
    if namespace in EXEMPT or level == "privileged" or not wishes:
        return
    text = f'violates PodSecurity "{level}:latest": {", ".join(wishes)}'
    raise Refused(403, "Forbidden", f'pods "{pod["metadata"]["name"]}" is forbidden: {text}')


def _privileges(spec: Mapping[str, Any]) -> list[str]:
    found = []
    shared = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if shared:
        found.append(f"host namespaces ({', '.join(f'{name}=true' for name in shared)})")
    found += [
        f'privileged (container "{container["name"]}" must not set securityContext.privileged=true)'
        for container in spec.get("containers") or ()
        if (container.get("securityContext") or {}).get("privileged")
    ]
    if any("hostPath" in volume for volume in spec.get("volumes") or ()):
        found.append("hostPath volumes")
    return found


def _at(obj: Any, path: str) -> Any:
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj
