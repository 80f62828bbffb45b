"""How long the releases' actions take in real life, and which of them trip once. Numbers only.

Typical values on idle hardware with a warm registry, from Cozystack's end-to-end suite, Flux's settings and, where neither
says anything, plausible estimates (operators: one Deployment and its image pull).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from lab.platform.catalogue import Catalogue
from lab.scenario import ReleaseOverride

SLOTS: Final = 5  # flux: --concurrent=5
# A tenant's parent releases hold a slot while they wait for their children; the shards have several controllers between them.
SHARD_SLOTS: Final = 20
DEPENDENCY_RECHECK_S: Final = 30.0  # flux: --requeue-dependency=30s; dependencies are not watched
STATUS_POLL_S: Final = 5.0  # helm-controller 1.5: kstatus poll interval
RETRY_S: Final = 30.0  # operator default of RetryOnFailure
INTERVAL_S: Final = 300.0
TIMEOUT_S: Final = 600.0
UNINSTALL_S: Final = 20.0
BACKOFF_S: Final = (0.75, 900.0)  # first and longest delay of the 1.3 remediation loop

OPERATOR_CRDS_S: Final = 3.0  # operator.crds-established
FLUX_INSTALLED_S: Final = 15.0  # operator.flux-installed: manifests applied
OCI_PULL_S: Final = 8.0  # flux.platform-oci-pull
ARTIFACT_BUILD_S: Final = 5.0  # flux.artifactgenerator-build
PACKAGE_WAVE_S: Final = 6.0  # one level of package dependencies; ten levels make the measured 70 s until all are ready
TENANT_CHILDREN_S: Final = 5.0  # tenant.child-helmreleases-exist
APISERVICE_S: Final = 5.0  # pods of cozystack-api ready -> caBundle set, APIService Available

LINSTOR_CONTROLLER_S: Final = 90.0  # component.linstor-controller-available-after-hr
LINSTOR_RELOAD_S: Final = 10.0  # cert-manager rewrites the API secret: `No route to host` meanwhile
LINSTOR_NODES_S: Final = 60.0  # component.linstor-3-nodes-online
LINSTOR_POOL_S: Final = 10.0  # component.linstor-pool-create
LINSTOR_EVACUATE_S: Final = 60.0  # one replica is copied elsewhere; with real data it takes hours

_CRDS_ONLY_S = 3.0
_OPERATOR_S = 25.0
_ACTIONS_S: dict[str, float] = {
    "cozystack-platform": 10.0,
    "cilium": 60.0,
    "kubeovn": 90.0,
    "cilium-networkpolicy": 5.0,
    "cert-manager": 40.0,
    "cert-manager-issuers": 10.0,
    "postgres-operator": 35.0,
    "grafana-operator": 30.0,
    "velero": 40.0,
    "piraeus-operator": 30.0,
    "linstor": 10.0,
    "keycloak": 90.0,
    "keycloak-configure": 60.0,
    "cozystack-api": 20.0,
    "cozystack-basics": 5.0,
    "flux-shard-operator": 20.0,
    "vertical-pod-autoscaler": 20.0,
    "vpa-for-vpa": 20.0,
    "tenant-root": 5.0,
    "info": 5.0,
    "etcd": 120.0,
    "ingress": 5.0,
    "ingress-nginx-system": 60.0,
    "monitoring": 5.0,
    "monitoring-system": 270.0,
    "seaweedfs": 5.0,
    "seaweedfs-db": 120.0,
    "seaweedfs-system": 150.0,
    "gateway": 10.0,
}
_TRIPS_ONCE = {  # the instance types reach the API before virt-operator has made their CRDs, in every release
    "cozy-kubevirt/kubevirt-instancetypes": "unable to build kubernetes objects from release manifest: no matches for kind "
    '"VirtualMachineClusterInstancetype" in version "instancetype.kubevirt.io/v1beta1" ensure CRDs are installed first'
}


@dataclass(frozen=True)
class Behaviour:
    """How the actions of one release go.

    `ready_after_s` counts from the first action's start and overrules the action's length. `fails` attempts fail before one
    succeeds, all with `exhausts` (the release stalls then). `rendered`: failures happen before Helm stores anything.
    `lacks`: kind whose CRD comes from release `provider`, without a declared dependency. `blocked`: the reason why it never
    begins.
    """

    action_s: float
    ready_after_s: float | None = None
    fails: int = 0
    exhausts: bool = False
    error: str = ""
    rendered: bool = False
    provider: str = ""
    lacks: str = ""
    blocked: str = ""

    def overruled(self, override: ReleaseOverride) -> Behaviour:
        return replace(
            self,
            ready_after_s=override.ready_after if override.ready_after is not None else self.ready_after_s,
            fails=max(self.fails, override.fails),
            exhausts=override.exhausts,
            error=override.message or self.error,
            rendered=self.rendered and not override.fails,
            blocked="SourceNotReady" if override.blocked else "",
        )


def behaviour(ref: str, known: Catalogue) -> Behaviour:
    """What `namespace/name` does when the scenario says nothing about it."""
    name = ref.split("/")[1]
    crds_only = name.endswith(("-crds", "-rd")) or name == "application-definition-crd"
    action_s = _ACTIONS_S.get(name, _CRDS_ONLY_S if crds_only else _OPERATOR_S)
    error = _TRIPS_ONCE.get(ref, "")
    return Behaviour(
        action_s,
        fails=1 if error else 0,
        error=error,
        rendered=bool(error),
        provider=known.races.get(name, ""),
        lacks=known.race_kinds.get(name, ""),
    )
