"""Known failures of an install: what a symptom means and what to do about it. Pure; only text goes in and comes out."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One known failure. `transient`: normal while other releases still make progress, a problem once nothing moves."""

    cause: str
    remedy: str
    transient: bool = False


@dataclass(frozen=True)
class _Symptom:
    diagnosis: Diagnosis
    message: re.Pattern[str]
    subject: re.Pattern[str] | None = None

    def fits(self, subject: str, text: str) -> bool:
        return bool(self.message.search(text)) and (self.subject is None or bool(self.subject.search(subject)))


def _known(message: str, cause: str, remedy: str, *, subject: str | None = None, transient: bool = False) -> _Symptom:
    return _Symptom(
        Diagnosis(cause, remedy, transient),
        re.compile(message, re.IGNORECASE),
        re.compile(subject) if subject else None,
    )


# The first row that fits wins, so the particular stand before the general.
_SYMPTOMS: tuple[_Symptom, ...] = (
    _known(
        r"no nodes found with label .*control-plane",
        "KubeOVN finds no control plane: the nodes carry the control-plane label with another value than it looks for",
        "label the control planes node-role.kubernetes.io/control-plane=true, or set network.masterNodes",
    ),
    _known(
        r"Source repository .*of kind OCIRepository not found",
        "the platform chart does not find the repository it came from: the operator has not created it",
        "look at the operator: kubectl -n cozy-system logs deploy/cozystack-operator",
    ),
    _known(
        r"no matches for kind",
        "it uses a kind whose definition another release brings, and is not ordered after that release",
        "nothing while other releases still become ready; afterwards look for the release that should bring the kind",
        transient=True,
    ),
    _known(
        r"failed calling webhook .*(x509|certificate is valid for)",
        "the webhook answers with another server's certificate: on hostNetwork its port collides with the kubelet's",
        "use a Cozystack release from 1.6 on, or restart the webhook's deployment on another node",
    ),
    _known(
        r"failed calling webhook .*(cnpg|cloudnative)",
        "the webhook of the PostgreSQL operator is not reachable from the API server",
        "if it stays: kubectl -n cozy-postgres-operator rollout restart deploy/postgres-operator-cloudnative-pg",
        transient=True,
    ),
    _known(
        r"failed calling webhook|webhook .*(connection refused|no endpoints|operation not permitted)",
        "an admission webhook of another component does not answer yet",
        "nothing while other releases still become ready; afterwards check the endpoints of the webhook's Service",
        transient=True,
    ),
    _known(
        r"timeout|deadline|not ready|InProgress|failed early|well-known|x509",
        "its login proxy looks for the sign-in service through an ingress that does not exist yet (OIDC on at install); "
        "on 1.4 without OIDC its token proxy restarts before it can listen",
        "with OIDC on: set access.oidc to false, let the platform converge, then switch it on; "
        "1.4 with OIDC off: use release 1.5 or later",
        subject=r"^cozy-dashboard/dashboard$",
    ),
    _known(
        r".",
        "its clean-up hook fails after OIDC was switched off (releases before 1.6.1)",
        "delete its Helm secret with status=uninstalling, then remove the finalizer of the HelmRelease; "
        "do not switch OIDC off again on this release",
        subject=r"^cozy-keycloak/keycloak-configure$",
    ),
    _known(
        r"timeout|deadline|InProgress|unbound|pending",
        "its volumes are most likely unbound: no storage pool or no default StorageClass yet",
        "check kubectl get pvc -A and kubectl get storageclass; LinstorPools and StorageClasses make them",
        subject=r"^(cozy-keycloak/keycloak|tenant-root/(etcd|monitoring|seaweedfs)[a-z-]*)$",
    ),
    _known(
        r"feature gate is d|can't access 'ExternalArtifact",
        "another Flux runs in this cluster and took over: it does not know the artifacts of Cozystack",
        "remove the other Flux installation; only the one in cozy-fluxcd may reconcile HelmReleases",
    ),
    _known(
        r"artifact not found|ExternalArtifact.* (not found|is not ready)|SourceWatcherStalled|lost Ready condition",
        "its chart is not built yet: the source-watcher is slow or stalled",
        "if nothing moves: annotate the ArtifactGenerator of the package in cozy-system with a new "
        "reconcile.fluxcd.io/requestedAt, then look at kubectl -n cozy-fluxcd logs deploy/flux -c source-watcher",
        transient=True,
    ),
    _known(
        r"could not resolve Secret chart values",
        "the values of the cluster are not copied into its namespace yet",
        "if nothing moves: the namespace lacks the label cozystack.io/system=true, or the operator does not run",
        transient=True,
    ),
    _known(
        r"get sources failed|SourceFetchFailed|(dial tcp|lookup) .*(ghcr|registry)|OCIRepository",
        "the platform's artifact cannot be pulled",
        "check the way from the cluster to the registry, then kubectl -n cozy-system get ocirepositories",
        transient=True,
    ),
    _known(
        r"ErrImagePull|ImagePullBackOff|TLS handshake timeout|toomanyrequests|429",
        "images cannot be pulled, or only very slowly",
        "check the way to the registry or configure a mirror (network.registries); slow pulls finish by themselves",
        transient=True,
    ),
    _known(
        r"violates PodSecurity",
        "the namespace does not allow what the pod asks for",
        "the operator sets the namespace's Pod Security label; look whether something resets it",
    ),
    _known(
        r"invalid ownership metadata|cannot be imported into the current release",
        "objects of an earlier installation are in the way; Helm refuses to take them over",
        "find out whose they are (annotation meta.helm.sh/release-name), then delete or adopt the named object",
    ),
    _known(
        r"too many open files",
        "the nodes allow too few inotify watches",
        "raise fs.inotify.max_user_watches and fs.inotify.max_user_instances on the nodes",
    ),
    _known(
        r"IP \S+ is already in use",
        "Cilium has leaked an endpoint address on that node",
        "restart the Cilium agent on the node that the event names",
    ),
    _known(
        r"not enough available nodes",
        "a volume wants more replicas than there are nodes with a storage pool",
        "lower the placement of the StorageClass to the number of storage nodes",
    ),
    _known(
        r"network not ready after \d+ ping to gateway",
        "KubeOVN has no route to its join network: its database has no leader or an old one",
        "check the pods of cozy-kubeovn; an OVN database left from an earlier installation has to go from /var/lib/ovn",
    ),
    _known(
        r"Unable to connect to Kubernetes apiserver",
        "Cilium was given an API address that its nodes do not reach",
        "on generic clusters set the endpoint for Cilium to an address of the node itself, for example https://127.0.0.1:7445",
    ),
    _known(
        r"Key was rejected by service",
        "the kernel refuses the storage module: Secure Boot is on and the module is not signed for it",
        "sign the module or switch Secure Boot off",
    ),
    _known(
        r"retries exhausted|RetriesExceeded|Failed to (install|upgrade) after \d+ attempt",
        "Flux gave up on it and does not try again by itself",
        "remove the cause it names, then suspend and resume the HelmRelease",
    ),
)

# Reasons of a Package that name the problem themselves; the rest of the meaning is in the message.
_PACKAGES: dict[str, Diagnosis] = {
    "VariantNotFound": Diagnosis(
        "the package asks for a variant that this release does not have",
        "correct platform.variant, or the variant of that Package",
    ),
    "PackageSourceNotFound": Diagnosis(
        "no package of that name belongs to this release",
        "correct the name in platform.bundles.enable, or the Cozystack version",
        transient=True,
    ),
    "DependsOnFailed": Diagnosis(
        "a component depends on one that the chosen variant does not have",
        "choose the variant that the message names, or report it to Cozystack",
    ),
    "InvalidConfiguration": Diagnosis(
        "the package source is not valid",
        "report it to Cozystack with the message above",
    ),
    "HelmReleaseFailed": Diagnosis(
        "the operator could not write a HelmRelease",
        "if it stays: kubectl -n cozy-system logs deploy/cozystack-operator",
        transient=True,
    ),
    "PackageMissing": Diagnosis(
        "a package that others need is not installed: its bundle is disabled, or the variant is isp-hosted up to 1.6",
        "enable that package, or add it to ignoreDependencies of the packages that wait for it",
    ),
}


def explain(subject: str, reason: str, message: str) -> Diagnosis | None:
    """The known failure behind a symptom, or None. `subject`: "namespace/name" of a release or "Package name"."""
    if subject.startswith("Package ") and reason in _PACKAGES:
        return _PACKAGES[reason]
    text = f"{reason}: {message}"
    return next((s.diagnosis for s in _SYMPTOMS if s.fits(subject, text)), None)
