"""The guardrails, each with values that are known and values that are not."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pulumi_policy import EnforcementLevel, PolicyResourceOptions, ResourceValidationArgs
from pulumi_policy.policy import PolicyCustomTimeouts
from pulumi_policy.proxy import (
    UNKNOWN_BOOLEAN_VALUE,
    UNKNOWN_OBJECT_VALUE,
    UNKNOWN_STRING_VALUE,
    unknown_checking_proxy,
)
from pulumi_policy.secret import Secret, secrets_preserving_proxy

from cozystack_iac.storage import zfs
from policy.guardrails.policies import POLICIES

BY_NAME = {policy.name: policy for policy in POLICIES}
PATCH = "pulumi-python:dynamic/cozystack:RootTenantPatch"
ROLLOUT = "pulumi-python:dynamic/cozystack:MachineConfigRollout"
PACKAGE = "kubernetes:cozystack.io/v1alpha1:Package"
PEM = "-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----"


class Said(list[str]):
    """Collects what a policy reports, as the engine would."""

    def report(self, text: str, _urn: str | None = None) -> None:
        self.append(text)


def options(protect: bool = False, secret_outputs: Iterable[str] = ()) -> PolicyResourceOptions:
    return PolicyResourceOptions(protect, [], None, [], PolicyCustomTimeouts(0, 0, 0), list(secret_outputs), None)


def run(name: str, token: str, props: Mapping[str, Any], opts: PolicyResourceOptions | None = None) -> list[str]:
    said = Said()
    args = ResourceValidationArgs(token, unknown_checking_proxy(dict(props)), "urn:x", "x", opts or options(), None)
    BY_NAME[name].validate(args, said.report)
    return said


def judged(name: str, token: str, props: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What the mandatory policy and what its advisory companion say."""
    return run(name, token, props), run(f"{name}-unverified", token, props)


def pod(namespace: str | None = "apps", name: str = "p", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace is not None else {})}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}


def test_guardrails_are_mandatory_and_companions_advisory() -> None:
    levels = {name: policy.enforcement_level for name, policy in BY_NAME.items()}

    assert {n for n, level in levels.items() if level is EnforcementLevel.ADVISORY} == {
        "no-privileged-workload-unverified",
        "disks-by-identity-unverified",
        "root-tenant-host-and-ingress-unverified",
        "secret-inputs-unverified",
    }
    assert levels["secret-inputs"] is EnforcementLevel.REMEDIATE


# Workloads ----------------------------------------------------------------------------------------------------------

PRIVILEGED = {"name": "c", "securityContext": {"privileged": True}}
ASKS: list[tuple[str, dict[str, Any], str]] = [
    ("hostPID", {"hostPID": True}, "hostPID"),
    ("hostIPC", {"hostIPC": True}, "hostIPC"),
    ("hostNetwork", {"hostNetwork": True}, "hostNetwork"),
    ("hostNetwork as text", {"hostNetwork": "true"}, "hostNetwork"),
    ("hostPath", {"volumes": [{"name": "d", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/dev"}}]}, "/dev"),
    ("privileged", {"containers": [PRIVILEGED]}, "privileged in container c"),
    ("privileged init", {"initContainers": [PRIVILEGED]}, "privileged in container c"),
    ("privileged ephemeral", {"ephemeralContainers": [PRIVILEGED]}, "privileged in container c"),
    ("second container", {"containers": [{"name": "a"}, PRIVILEGED]}, "privileged in container c"),
    (
        "capability",
        {"containers": [{"securityContext": {"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}}]},
        "SYS_ADMIN",
    ),
    ("all capabilities", {"containers": [{"securityContext": {"capabilities": {"add": ["ALL"]}}}]}, "ALL"),
    ("capability prefix", {"containers": [{"securityContext": {"capabilities": {"add": ["CAP_BPF"]}}}]}, "CAP_BPF"),
    ("host port", {"containers": [{"ports": [{"containerPort": 80.0, "hostPort": 8080.0}]}]}, "hostPort 8080"),
    ("proc mount", {"containers": [{"securityContext": {"procMount": "Unmasked"}}]}, "procMount"),
    ("seccomp", {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile"),
    ("apparmor", {"containers": [{"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]}, "appArmorProfile"),
    ("selinux", {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}, "spc_t"),
    ("sysctl", {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "kernel.msgmax"),
    ("host process", {"securityContext": {"windowsOptions": {"hostProcess": True}}}, "hostProcess"),
]


@pytest.mark.parametrize(("spec", "named"), [a[1:] for a in ASKS], ids=[a[0] for a in ASKS])
def test_a_privileged_pod_is_refused_and_the_reason_named(spec: dict[str, Any], named: str) -> None:
    violations, open_ = judged("no-privileged-workload", "kubernetes:core/v1:Pod", pod(**spec))

    assert len(violations) == 1
    assert named in violations[0]
    assert "cozy-storage-bootstrap" in violations[0]
    assert open_ == []


@pytest.mark.parametrize(("spec", "named"), [a[1:] for a in ASKS], ids=[a[0] for a in ASKS])
def test_the_storage_namespace_may_do_all_of_it(spec: dict[str, Any], named: str) -> None:
    obj = pod("cozy-storage-bootstrap", **spec)

    assert judged("no-privileged-workload", "kubernetes:core/v1:Pod", obj) == ([], []), named


@pytest.mark.parametrize(
    "token",
    [
        "kubernetes:apps/v1:Deployment",
        "kubernetes:apps/v1:DaemonSet",
        "kubernetes:apps/v1:StatefulSet",
        "kubernetes:apps/v1:ReplicaSet",
        "kubernetes:apps/v1:DaemonSetPatch",
        "kubernetes:batch/v1:Job",
        "kubernetes:core/v1:ReplicationController",
        "kubernetes:extensions/v1beta1:DaemonSet",
    ],
)
def test_every_kind_with_a_pod_template_is_judged(token: str) -> None:
    obj = {"metadata": {"namespace": "apps", "name": "w"}, "spec": {"template": {"spec": {"hostPID": True}}}}

    assert len(run("no-privileged-workload", token, obj)) == 1


def test_cron_jobs_lists_and_pod_templates_are_judged() -> None:
    template = {"spec": {"hostPID": True}}
    cron = {"metadata": {"namespace": "a"}, "spec": {"jobTemplate": {"spec": {"template": template}}}}

    assert len(run("no-privileged-workload", "kubernetes:batch/v1:CronJob", cron)) == 1
    assert len(run("no-privileged-workload", "kubernetes:core/v1:PodTemplate", {"template": template})) == 1
    assert len(run("no-privileged-workload", "kubernetes:core/v1:PodList", {"items": [pod(), pod(hostPID=True)]})) == 1


def test_ordinary_workloads_and_other_kinds_pass() -> None:
    ordinary = pod(
        hostNetwork=False,
        volumes=[{"name": "c", "configMap": {"name": "c"}}],
        containers=[{"name": "c", "securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"]}}}],
    )
    role = {"metadata": {"name": "x"}, "spec": {"hostPID": True}}

    assert judged("no-privileged-workload", "kubernetes:core/v1:Pod", ordinary) == ([], [])
    assert judged("no-privileged-workload", "kubernetes:rbac.authorization.k8s.io/v1:Role", role) == ([], [])


def test_a_pod_without_namespace_is_not_in_the_storage_namespace() -> None:
    assert len(run("no-privileged-workload", "kubernetes:core/v1:Pod", pod(None, hostPID=True))) == 1


def test_all_reasons_are_given_at_once() -> None:
    obj = pod(hostPID=True, hostNetwork=True, containers=[PRIVILEGED])

    assert len(run("no-privileged-workload", "kubernetes:core/v1:Pod", obj)) == 3


def test_extractedprism_may_listen_on_the_host_and_nothing_more() -> None:
    def prism(**spec: Any) -> dict[str, Any]:
        metadata = {"namespace": "kube-system", "name": "extractedprism"}
        return {"metadata": metadata, "spec": {"template": {"spec": {"hostNetwork": True, **spec}}}}

    token = "kubernetes:apps/v1:DaemonSet"
    assert run("no-privileged-workload", token, prism()) == []
    assert len(run("no-privileged-workload", token, prism(hostPID=True))) == 1
    assert len(run("no-privileged-workload", "kubernetes:core/v1:Pod", pod("kube-system", hostNetwork=True))) == 1


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"hostPID": UNKNOWN_BOOLEAN_VALUE}, "spec.hostPID"),
        ({"containers": [{"securityContext": UNKNOWN_OBJECT_VALUE}]}, "spec.containers.0.securityContext"),
        ({"volumes": [{"hostPath": UNKNOWN_OBJECT_VALUE}]}, "spec.volumes.0.hostPath"),
        ({"containers": UNKNOWN_OBJECT_VALUE}, "spec.containers"),
        ({"containers": [{"securityContext": {"capabilities": {"add": [UNKNOWN_STRING_VALUE]}}}]}, "add.0"),
    ],
)
def test_an_unknown_that_could_hide_a_privilege_is_reported_as_not_verified(spec: dict[str, Any], path: str) -> None:
    violations, open_ = judged("no-privileged-workload", "kubernetes:core/v1:Pod", pod(**spec))

    assert violations == []
    assert len(open_) == 1
    assert open_[0].startswith("not verified yet: ")
    assert path in open_[0]


def test_an_unknown_does_not_silence_what_is_known() -> None:
    obj = pod(hostPID=True, hostNetwork=UNKNOWN_BOOLEAN_VALUE, containers=[{"image": UNKNOWN_STRING_VALUE}])
    violations, open_ = judged("no-privileged-workload", "kubernetes:core/v1:Pod", obj)

    assert ["hostPID" in v for v in violations] == [True]
    assert ["spec.hostNetwork" in o for o in open_] == [True]


def test_an_unknown_that_hides_nothing_is_not_mentioned() -> None:
    obj = pod(containers=[{"image": UNKNOWN_STRING_VALUE, "env": UNKNOWN_OBJECT_VALUE}], nodeName=UNKNOWN_STRING_VALUE)

    assert judged("no-privileged-workload", "kubernetes:core/v1:Pod", obj) == ([], [])


def test_a_privileged_pod_in_an_unknown_namespace_is_not_verified() -> None:
    violations, open_ = judged(
        "no-privileged-workload", "kubernetes:core/v1:Pod", pod(UNKNOWN_STRING_VALUE, hostPID=True)
    )

    assert violations == []
    assert "namespace is not known" in open_[0]


def test_an_unknown_whole_object_is_not_verified() -> None:
    obj = {"metadata": {"namespace": "a", "name": "b"}, "spec": UNKNOWN_OBJECT_VALUE}

    assert [len(s) for s in judged("no-privileged-workload", "kubernetes:core/v1:Pod", obj)] == [0, 1]


@pytest.mark.parametrize(
    ("name", "level", "violations", "unverified"),
    [
        ("cozy-storage-bootstrap", "privileged", 0, 0),
        ("apps", "privileged", 1, 0),
        ("apps", "baseline", 0, 0),
        ("apps", None, 0, 0),
        ("apps", UNKNOWN_STRING_VALUE, 0, 1),
        (UNKNOWN_STRING_VALUE, "privileged", 0, 1),
        (UNKNOWN_STRING_VALUE, "baseline", 0, 0),
        ("cozy-storage-bootstrap", UNKNOWN_STRING_VALUE, 0, 0),
    ],
)
def test_only_the_storage_namespace_may_admit_privileged_pods(
    name: str, level: str | None, violations: int, unverified: int
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {"team": "a"}
    obj = {"metadata": {"name": name, "labels": labels}}
    said = judged("no-privileged-workload", "kubernetes:core/v1:Namespace", obj)

    assert [len(s) for s in said] == [violations, unverified]


# Root tenant --------------------------------------------------------------------------------------------------------

PAIRS = [
    ({"host": "example.com", "ingress": True}, 0, 0),
    ({"host": "", "ingress": False}, 0, 0),
    ({}, 0, 0),
    ({"host": "example.com", "ingress": False}, 1, 0),
    ({"host": "example.com"}, 1, 0),
    ({"ingress": True}, 1, 0),
    ({"host": "", "ingress": True}, 1, 0),
    ({"host": UNKNOWN_STRING_VALUE, "ingress": True}, 0, 1),
    ({"host": "example.com", "ingress": UNKNOWN_BOOLEAN_VALUE}, 0, 1),
]


@pytest.mark.parametrize(("spec", "violations", "unverified"), PAIRS)
def test_host_and_ingress_go_together_wherever_they_are_set(
    spec: dict[str, Any], violations: int, unverified: int
) -> None:
    root = {"namespace": "tenant-root", "name": "root"}
    release = {"namespace": "tenant-root", "name": "tenant-root"}
    places = [
        (PATCH, spec),
        ("kubernetes:apps.cozystack.io/v1alpha1:Tenant", {"metadata": root, "spec": spec}),
        ("kubernetes:apps.cozystack.io/v1alpha1:TenantPatch", {"metadata": root, "spec": spec}),
        ("kubernetes:helm.toolkit.fluxcd.io/v2:HelmRelease", {"metadata": release, "spec": {"values": spec}}),
    ]
    said = [[len(s) for s in judged("root-tenant-host-and-ingress", token, props)] for token, props in places]

    assert said == [[violations, unverified]] * len(places)


def test_other_tenants_may_do_as_they_like() -> None:
    props = {"metadata": {"namespace": "tenant-root", "name": "team1"}, "spec": {"host": "team1.example.com"}}

    assert judged("root-tenant-host-and-ingress", "kubernetes:apps.cozystack.io/v1alpha1:Tenant", props) == ([], [])


def test_a_tenant_of_unknown_name_is_not_verified_when_it_would_break_the_rule() -> None:
    props = {"metadata": {"namespace": "tenant-root", "name": UNKNOWN_STRING_VALUE}, "spec": {"host": "h.example.com"}}
    violations, open_ = judged("root-tenant-host-and-ingress", "kubernetes:apps.cozystack.io/v1alpha1:Tenant", props)

    assert (violations, len(open_)) == ([], 1)


@pytest.mark.parametrize(
    ("publishing", "violations", "unverified"),
    [
        ({"host": "example.com", "externalIPs": ["10.0.0.1"]}, 0, 0),
        ({"host": "example.com", "ingressName": "tenant-root"}, 0, 0),
        ({"host": "example.com", "ingressName": ""}, 1, 0),
        ({"externalIPs": ["10.0.0.1"]}, 1, 0),
        ({"host": "example.org", "exposedServices": ["api"]}, 1, 0),
        ({}, 0, 0),
        (None, 0, 0),
        ({"host": UNKNOWN_STRING_VALUE, "exposedServices": ["api"]}, 0, 1),
        (UNKNOWN_OBJECT_VALUE, 0, 1),
    ],
)
def test_the_platform_package_publishes_with_a_host_or_not_at_all(
    publishing: Any, violations: int, unverified: int
) -> None:
    values = {"spec": {"components": {"platform": {"values": {"publishing": publishing}}}}}
    props = {"metadata": {"name": "cozystack.cozystack-platform"}, **values}
    said = judged("root-tenant-host-and-ingress", PACKAGE, props)

    assert [len(s) for s in said] == [violations, unverified]
    assert judged("root-tenant-host-and-ingress", PACKAGE, {"metadata": {"name": "cozystack.other"}, **values}) == (
        [],
        [],
    )


# Disks ---------------------------------------------------------------------------------------------------------------

SATELLITE = "kubernetes:piraeus.io/v1:LinstorSatelliteConfiguration"
JOB = "kubernetes:batch/v1:Job"


@pytest.mark.parametrize(
    ("devices", "violations", "unverified"),
    [
        (["/dev/disk/by-id/nvme-S970"], 0, 0),
        (["/dev/sdb"], 1, 0),
        (["/dev/disk/by-path/pci-0000", "/dev/mapper/mpatha"], 2, 0),
        ([UNKNOWN_STRING_VALUE], 0, 1),
        (["/dev/sdb", UNKNOWN_STRING_VALUE], 1, 1),
    ],
)
def test_linstor_gets_disks_by_their_identity_only(devices: list[Any], violations: int, unverified: int) -> None:
    pools = [{"name": "data", "zfsPool": {"zPool": "data"}, "source": {"hostDevices": devices}}]
    props = {"metadata": {"name": "cp1"}, "spec": {"storagePools": pools}}

    assert [len(said) for said in judged("disks-by-identity", SATELLITE, props)] == [violations, unverified]


def zpool_job(disks: Any = "serial=S1", *, retries: Any = 0, restart: Any = "Never") -> dict[str, Any]:
    container = {"name": "zpool", "env": [{"name": "DISKS", "value": disks}]}
    template = {"spec": {"restartPolicy": restart, "containers": [container]}}
    metadata = {"namespace": "cozy-storage-bootstrap", "name": "zpool-cp1"}
    return {"metadata": metadata, "spec": {"backoffLimit": retries, "template": template}}


@pytest.mark.parametrize(
    ("props", "violations", "unverified"),
    [
        (zpool_job(), 0, 0),
        (zpool_job("serial=S1\nbyId=ata-LAB_SSD"), 0, 0),
        (zpool_job("/dev/sdb"), 1, 0),
        (zpool_job("serial=S1 /dev/nvme0n1", retries=6, restart="OnFailure"), 3, 0),
        (zpool_job(retries=None), 1, 0),
        (zpool_job(UNKNOWN_STRING_VALUE, retries=1), 1, 1),
    ],
)
def test_a_storage_job_names_disks_by_identity_and_never_tries_again(
    props: dict[str, Any], violations: int, unverified: int
) -> None:
    assert [len(said) for said in judged("disks-by-identity", JOB, props)] == [violations, unverified]


def test_other_jobs_may_try_again_and_name_what_they_like() -> None:
    props = zpool_job("/dev/sdb", retries=6)
    props["metadata"]["namespace"] = "apps"

    assert judged("disks-by-identity", JOB, props) == ([], [])


def test_the_program_s_own_job_passes() -> None:
    plan = zfs.PoolPlan("cp1", "data", "single", (zfs.DiskIdentity("byId", "ata-LAB_SSD"),), 1)

    assert judged("disks-by-identity", JOB, zfs.job(plan, "image")) == ([], [])


# Secrets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("protect", "violations"), [(True, 0), (False, 1)])
def test_machine_secrets_are_protected(protect: bool, violations: int) -> None:
    token, name = "talos:machine/secrets:Secrets", "machine-secrets-protected"
    props = {"talosVersion": UNKNOWN_STRING_VALUE}

    assert len(run(name, token, props, options(protect))) == violations
    assert run(name, "talos:machine/other:Other", props, options(protect)) == []


@pytest.mark.parametrize(
    ("token", "names", "secret_outputs", "violations"),
    [
        (ROLLOUT, ["configurations", "nodes"], ["configurations"], 0),
        (ROLLOUT, ["configurations", "nodes"], [], 1),
        (ROLLOUT, ["configurations", "client_configuration", "talosconfig"], ["configurations"], 2),
        (ROLLOUT, ["kubeconfig_file", "nodes", "deadline_s"], [], 0),
        ("talos:cluster/kubeconfig:Kubeconfig", ["node"], ["kubeconfigRaw"], 0),
        ("talos:cluster/kubeconfig:Kubeconfig", ["node"], [], 1),
        ("kubernetes:core/v1:ConfigMap", ["kubeconfig"], [], 0),
    ],
)
def test_outputs_that_open_a_cluster_are_registered_as_secret(
    token: str, names: list[str], secret_outputs: list[str], violations: int
) -> None:
    props = dict.fromkeys(names, UNKNOWN_STRING_VALUE)

    assert len(run("secret-outputs", token, props, options(secret_outputs=secret_outputs))) == violations


def shown(token: str, props: Mapping[str, Any], urn: str) -> tuple[list[str], list[str]]:
    """The engine's order: it asks for a remediation, showing secrets, and then for validation, hiding them."""
    raw = secrets_preserving_proxy(dict(props))
    changed = BY_NAME["secret-inputs"].remediate(ResourceValidationArgs(token, raw, urn, "x", options(), None))
    assert changed is None

    bare = {k: v.value if isinstance(v, Secret) else v for k, v in props.items()}
    args = ResourceValidationArgs(token, unknown_checking_proxy(bare), urn, "x", options(), None)
    said = (Said(), Said())
    for policy, into in zip(("secret-inputs", "secret-inputs-unverified"), said, strict=True):
        BY_NAME[policy].validate(args, into.report)
    return said


CASES: list[tuple[str, str, dict[str, Any], int, int]] = [
    ("sealed", ROLLOUT, {"configurations": Secret({"cp1": "x"}), "nodes": ["cp1"]}, 0, 0),
    ("plain", ROLLOUT, {"configurations": {"cp1": "x"}}, 1, 0),
    ("every leaf sealed", ROLLOUT, {"configurations": {"cp1": Secret("x"), "cp2": Secret("y")}}, 0, 0),
    ("one leaf plain", ROLLOUT, {"configurations": {"cp1": Secret("x"), "cp2": "y"}}, 1, 0),
    ("unknown", ROLLOUT, {"configurations": UNKNOWN_OBJECT_VALUE}, 0, 1),
    ("sealed unknown", ROLLOUT, {"configurations": Secret(UNKNOWN_OBJECT_VALUE)}, 0, 0),
    ("absent", ROLLOUT, {"kubeconfig": None}, 0, 0),
    ("provider", "pulumi:providers:kubernetes", {"kubeconfig": "apiVersion: v1"}, 1, 0),
    ("sealed provider", "pulumi:providers:kubernetes", {"kubeconfig": Secret("apiVersion: v1")}, 0, 0),
    ("key anywhere", "kubernetes:core/v1:ConfigMap", {"data": {"a": [PEM]}}, 1, 0),
    ("sealed key", "kubernetes:core/v1:ConfigMap", {"data": Secret({"a": PEM})}, 0, 0),
    ("base64 key", "kubernetes:core/v1:ConfigMap", {"data": {"k": base64.b64encode(PEM.encode()).decode()}}, 1, 0),
    ("certificate", "kubernetes:core/v1:ConfigMap", {"data": {"c": "-----BEGIN CERTIFICATE-----\nAA"}}, 0, 0),
    ("engine's own", ROLLOUT, {"__provider": PEM, "nodes": ["cp1"]}, 0, 0),
]


@pytest.mark.parametrize(
    ("token", "props", "violations", "unverified"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_what_opens_a_cluster_is_given_as_a_secret(
    token: str, props: dict[str, Any], violations: int, unverified: int
) -> None:
    said = shown(token, props, f"urn:{violations}{unverified}{sorted(props)}")

    assert [len(s) for s in said] == [violations, unverified]


def test_no_violation_repeats_the_secret() -> None:
    said = shown("kubernetes:core/v1:ConfigMap", {"data": {"key": PEM}}, "urn:quiet")

    assert "AAAA" not in said[0][0]


def test_secrecy_that_nobody_showed_is_not_verified() -> None:
    args = ResourceValidationArgs(
        ROLLOUT, unknown_checking_proxy({"configurations": "x"}), "urn:new", "x", options(), None
    )
    said = Said()
    BY_NAME["secret-inputs-unverified"].validate(args, said.report)

    assert len(said) == 1
    assert "configurations" in said[0]
