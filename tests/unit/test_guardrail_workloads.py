"""The guardrail for privileged workloads, with values that are known and values that are not."""

from typing import Any

import pytest
from pulumi_policy.proxy import UNKNOWN_BOOLEAN_VALUE, UNKNOWN_OBJECT_VALUE, UNKNOWN_STRING_VALUE

from tests.guardrails import judged, run


def pod(namespace: str | None = "apps", name: str = "p", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace is not None else {})}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}


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
