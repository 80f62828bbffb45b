"""Known failures: the symptom as it is really seen, and what a person is told about it."""

import pytest

from cozystack_iac.diagnosis import explain

DASHBOARD, RELEASE = "cozy-dashboard/dashboard", "cozy-x/x"


@pytest.mark.parametrize(
    ("subject", "reason", "message", "cause"),
    [
        (DASHBOARD, "InstallFailed", "timeout waiting for: [Deployment/cozy-dashboard/incloud-web-gatekeeper]", "OIDC"),
        (
            "cozy-kubeovn/kubeovn",
            "InstallFailed",
            "execution error: No nodes found with label 'node-role.kubernetes.io/control-plane=true'.",
            "control plane",
        ),
        ("cozy-keycloak/keycloak", "InstallFailed", "context deadline exceeded", "volumes"),
        ("tenant-root/monitoring-system", "InstallFailed", "timeout waiting for: [PersistentVolumeClaim]", "volumes"),
        ("cozy-keycloak/keycloak-configure", "UninstallFailed", "context deadline exceeded", "OIDC was disabled"),
        (RELEASE, "InstallFailed", 'no matches for kind "PrometheusRule" in version "v1"', "kind"),
        (
            RELEASE,
            "InstallFailed",
            'failed calling webhook "m.cnpg.io": Post "https://cnpg-webhook.svc": connection refused',
            "PostgreSQL",
        ),
        (RELEASE, "InstallFailed", 'failed calling webhook "v": connect: operation not permitted', "webhook"),
        (
            RELEASE,
            "InstallFailed",
            'failed calling webhook "w": x509: certificate is valid for cp1, not cert-manager-webhook',
            "port",
        ),
        (RELEASE, "ArtifactFailed", 'could not get Source object: ExternalArtifact "a" not found', "not been built"),
        (RELEASE, "SourceNotReady", "ExternalArtifact 'cozy-system/a' is not ready: no artifact", "not been built"),
        (RELEASE, "ValuesError", "could not resolve Secret chart values reference 'n/cozystack-values'", "values"),
        (RELEASE, "AccessDenied", "can't access 'ExternalArtifact/x', feature gate is disabled", "another Flux"),
        (RELEASE, "RetriesExceeded", "Failed to upgrade after 1 attempt(s)", "gave up"),
        (
            RELEASE,
            "InstallFailed",
            "cannot be imported into the current release: invalid ownership metadata",
            "earlier",
        ),
        (RELEASE, "InstallFailed", "fsnotify: too many open files", "inotify"),
        (RELEASE, "InstallFailed", "Not enough available nodes", "replicas"),
        (RELEASE, "InstallFailed", "Back-off: ErrImagePull: TLS handshake timeout", "pulled"),
        (
            "cozy-system/cozystack-platform",
            "InstallFailed",
            "Source repository cozy-system/cozystack-platform of kind OCIRepository not found in namespace cozy-system",
            "source repository of the platform chart",
        ),
        ("Package p", "VariantNotFound", "Variant x not found in PackageSource p", "variant"),
        ("Package p", "PackageMissing", "needed by q", "not installed"),
        ("Package p", "DependsOnFailed", "component y not found in variant x", "component"),
    ],
)
def test_a_known_symptom_has_its_cause_and_a_remedy(subject: str, reason: str, message: str, cause: str) -> None:
    found = explain(subject, reason, message)

    assert found is not None
    assert cause in found.cause
    assert found.remedy


def test_an_unknown_symptom_gets_no_invented_cause() -> None:
    assert explain(RELEASE, "InstallFailed", "context deadline exceeded") is None
    assert explain(RELEASE, "Progressing", "") is None


@pytest.mark.parametrize("message", ['no matches for kind "X"', "failed calling webhook: connection refused"])
def test_noise_of_the_first_minutes_is_marked_as_transient(message: str) -> None:
    found = explain(RELEASE, "InstallFailed", message)

    assert found is not None
    assert found.transient
