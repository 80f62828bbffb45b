"""The lab's real control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and KWOK as every kubelet.

Order: etcd, API server, then the others together; stop in reverse. Everything listens on 127.0.0.1 with ports chosen at start.
The API server's client CA bundle and serving certificate are files it reloads: `adopt` makes it part of the cluster that the
simulated machines bootstrapped, without a restart.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from ruamel.yaml import YAML

from lab import pki
from lab.children import Child, Children, free_ports, until_ready

SERVICE_RANGE = "10.96.0.0/16"  # Cozystack's default serviceCIDR
NO_POD_NETWORK = "100::/64"  # RFC 6666 discard prefix: the sign to lab/kwok/pods.yaml that a node has no pod range yet
BINARIES = frozenset({"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"})
_KWOK = Path(__file__).parent / "kwok"
_CONTROLLERS = (
    "clusterrole-aggregation-controller,daemonset-controller,deployment-controller,disruption-controller,endpoints-controller,"
    "endpointslice-controller,garbage-collector-controller,job-controller,namespace-controller,node-lifecycle-controller,"
    "pod-garbage-collector-controller,replicaset-controller,root-ca-certificate-publisher-controller,"
    "serviceaccount-controller,serviceaccount-token-controller,statefulset-controller,taint-eviction-controller,ttl-after-finished-controller"
)
# What a Talos control plane enforces unless its config says otherwise (machine config `cluster.apiServer.admissionControl`).
_POD_SECURITY = {
    "apiVersion": "pod-security.admission.config.k8s.io/v1",
    "kind": "PodSecurityConfiguration",
    "defaults": {
        "enforce": "baseline",
        "enforce-version": "latest",
        "audit": "restricted",
        "audit-version": "latest",
        "warn": "restricted",
        "warn-version": "latest",
    },
    "exemptions": {"namespaces": ["kube-system"]},
}
# The Go runtime trades memory for garbage collection; five processes share this machine with the program under test.
# Collecting less often saves a third of the API server's time for 90 MiB (measured); its limit bounds what it may take.
_LEAN = {"GOGC": "200", "GOMAXPROCS": "2"}
_MEMORY_LIMIT = {"etcd": "128MiB", "kube-apiserver": "420MiB"}


class AdoptionFailed(Exception):
    """The API server did not take over the bootstrapped cluster's CA; the text says what it answered."""


@dataclass(frozen=True)
class Ports:
    etcd: int
    etcd_peer: int
    api: int
    controller_manager: int
    scheduler: int
    kwok: int

    @classmethod
    def free(cls) -> Ports:
        return cls(*free_ports(6))


class ControlPlane:
    """The five processes and their files under `state`. `path(binary)` names each executable."""

    def __init__(self, state: Path, children: Children, binaries: Mapping[str, Path]) -> None:
        self.state = state
        self.ports = Ports.free()
        self._children = children
        self._binaries = binaries
        self._pki = state / "pki"
        self._lab_ca = pki.new_authority("cozystack-iac lab")
        self._adopted: list[str] = []

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.ports.api}"

    @property
    def kubeconfig(self) -> Path:
        """Administrator's kubeconfig that bypasses the cluster's own front: for the simulators and for tests."""
        return self.state / "kubeconfig" / "lab.yaml"

    async def start(self) -> None:
        """Returns when the API server is ready and the other processes answer. Raises ChildDied, TimeoutError."""
        (self.state / "etcd").mkdir(parents=True, exist_ok=True)
        etcd = asyncio.create_task(self._start_etcd())
        self._write_files()
        await etcd
        await self._start_api_server()
        await asyncio.gather(self._start_controller_manager(), self._start_scheduler(), self._start_kwok())

    async def stop(self) -> None:
        """In reverse order; each process is gone and its port closed before what it depends on is stopped."""
        await self._children.stop("kwok", "kube-scheduler", "kube-controller-manager")
        await self._children.stop("kube-apiserver")
        await self._children.stop("etcd")

    def adopt(self, cluster_ca: pki.Pair, hosts: Iterable[str]) -> None:
        """Trust client certificates of the cluster's own CA and serve with a certificate it signed for `hosts`.

        The API server notices the new files by itself, within a second. Adopting the same CA again changes nothing.
        """
        if cluster_ca.crt not in self._adopted:
            self._adopted.append(cluster_ca.crt)
            _replace(self._pki / "client-ca.crt", "\n".join([self._lab_ca.crt, *self._adopted]))
        serving = pki.issue_serving(cluster_ca, "kube-apiserver", ["127.0.0.1", "localhost", *hosts])
        _replace(self._pki / "apiserver.key", serving.key)
        _replace(self._pki / "apiserver.crt", serving.crt)

    async def answers_as(self, cluster_ca: str, client: pki.Pair, deadline_s: float = 20.0) -> None:
        """Returns once the API server serves with the adopted CA and accepts its clients. Raises AdoptionFailed."""
        deadline = asyncio.get_running_loop().time() + deadline_s
        async with httpx.AsyncClient(verify=_tls(self.state, client, cluster_ca), trust_env=False) as http:
            while (refusal := await _refusal(http, f"{self.server}/readyz")) is not None:
                if asyncio.get_running_loop().time() > deadline:
                    raise AdoptionFailed(f"the API server does not serve as the bootstrapped cluster: {refusal}")
                await asyncio.sleep(0.1)

    def admin_of(self, cluster_ca: pki.Pair) -> pki.Pair:
        """A short-lived administrator of the adopted cluster, to see whether its CA is already trusted."""
        return pki.issue_client(cluster_ca, "lab:adoption-check", ["system:masters"])

    def _write_files(self) -> None:
        front_ca = pki.new_authority("cozystack-iac lab front proxy")
        pairs = {
            "lab-ca": self._lab_ca,
            "front-proxy-ca": front_ca,
            "front-proxy-client": pki.issue_client(front_ca, "front-proxy-client"),
            "apiserver": pki.issue_serving(self._lab_ca, "kube-apiserver", ["127.0.0.1", "localhost", "kubernetes"]),
            "kubelet": pki.issue_serving(self._lab_ca, "kubelet", ["127.0.0.1", "localhost"]),
            "kubelet-client": pki.issue_client(self._lab_ca, "kube-apiserver-kubelet-client", ["system:masters"]),
            "service-account": pki.new_signing_key(),
        }
        self._pki.mkdir(parents=True, exist_ok=True)
        for name, pair in pairs.items():
            _replace(self._pki / f"{name}.crt", pair.crt)
            _replace(self._pki / f"{name}.key", pair.key)
        _replace(self._pki / "client-ca.crt", self._lab_ca.crt)
        clients = {
            "lab": ("lab:administrator", ["system:masters"]),
            "controller-manager": ("system:kube-controller-manager", []),
            "scheduler": ("system:kube-scheduler", []),
            "kwok": ("lab:kwok", ["system:masters"]),
        }
        for name, (user, groups) in clients.items():
            self._write_kubeconfig(name, pki.issue_client(self._lab_ca, user, groups))
        _write_yaml(self.state / "pki" / "admission.yaml", _admission())
        _write_yaml(self.state / "pki" / "scheduler.yaml", self._scheduler_config())
        stages = [(_KWOK / name).read_text(encoding="utf-8") for name in ("nodes.yaml", "pods.yaml", "exec.yaml")]
        _replace(self.state / "pki" / "kwok.yaml", "\n---\n".join(stages))

    def _write_kubeconfig(self, name: str, client: pki.Pair) -> None:
        # The serving certificate changes hands at adoption, so these loopback clients do not verify it.
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name}}],
            "clusters": [{"name": "lab", "cluster": {"server": self.server, "insecure-skip-tls-verify": True}}],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": _base64(client.crt),
                        "client-key-data": _base64(client.key),
                    },
                }
            ],
        }
        _write_yaml(self.state / "kubeconfig" / f"{name}.yaml", body)

    async def _start_etcd(self) -> None:
        client = f"http://127.0.0.1:{self.ports.etcd}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        child = await self._run(
            "etcd",
            self.ports.etcd,
            "--name=lab",
            f"--data-dir={self.state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=lab={peer}",
            "--unsafe-no-fsync",
            "--snapshot-count=5000",
            "--log-level=warn",
        )
        async with httpx.AsyncClient(trust_env=False) as http:
            await until_ready(child, lambda: _healthy(http, f"{client}/health"), 30)

    async def _start_api_server(self) -> None:
        at = self._pki
        child = await self._run(
            "kube-apiserver",
            self.ports.api,
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.ports.api}",
            f"--tls-cert-file={at}/apiserver.crt",
            f"--tls-private-key-file={at}/apiserver.key",
            f"--client-ca-file={at}/client-ca.crt",
            "--anonymous-auth=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--admission-control-config-file={at}/admission.yaml",
            "--allow-privileged=true",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={at}/service-account.crt",
            f"--service-account-signing-key-file={at}/service-account.key",
            f"--requestheader-client-ca-file={at}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={at}/front-proxy-client.crt",
            f"--proxy-client-key-file={at}/front-proxy-client.key",
            "--enable-aggregator-routing=false",
            f"--kubelet-client-certificate={at}/kubelet-client.crt",
            f"--kubelet-client-key={at}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--event-ttl=30m",
            "--shutdown-delay-duration=0s",
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=800",
            "--max-mutating-requests-inflight=400",
            "--profiling=false",
        )
        client = pki.issue_client(self._lab_ca, "lab:readiness", ["system:masters"])
        context = _tls(self.state, client, None)
        await until_ready(child, lambda: self._ready(context), 60)

    async def _ready(self, context: ssl.SSLContext) -> bool:
        async with httpx.AsyncClient(verify=context, trust_env=False) as http:
            return await _healthy(http, f"{self.server}/readyz")

    async def _start_controller_manager(self) -> None:
        child = await self._run(
            "kube-controller-manager",
            self.ports.controller_manager,
            f"--kubeconfig={self.state}/kubeconfig/controller-manager.yaml",
            f"--authentication-kubeconfig={self.state}/kubeconfig/controller-manager.yaml",
            "--authentication-skip-lookup=true",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.controller_manager}",
            f"--cert-dir={self.state}/pki/controller-manager",
            f"--controllers={_CONTROLLERS}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._pki}/service-account.key",
            f"--root-ca-file={self._pki}/lab-ca.crt",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=50s",
            "--kube-api-qps=300",
            "--kube-api-burst=400",
            "--concurrent-deployment-syncs=4",
            "--concurrent-gc-syncs=8",
            "--min-resync-period=12h",
            "--profiling=false",
        )
        await self._answers(child)

    async def _start_scheduler(self) -> None:
        child = await self._run(
            "kube-scheduler",
            self.ports.scheduler,
            f"--config={self._pki}/scheduler.yaml",
            f"--authentication-kubeconfig={self.state}/kubeconfig/scheduler.yaml",
            f"--authorization-kubeconfig={self.state}/kubeconfig/scheduler.yaml",
            "--authentication-skip-lookup=true",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.scheduler}",
            f"--cert-dir={self.state}/pki/scheduler",
        )
        await self._answers(child)

    def _scheduler_config(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": f"{self.state}/kubeconfig/scheduler.yaml", "qps": 300, "burst": 400},
            "leaderElection": {"leaderElect": False},
            "enableProfiling": False,
            "parallelism": 2,
            # A scaled world does not wait for backoffs meant for real seconds.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
        }

    async def _start_kwok(self) -> None:
        child = await self._run(
            "kwok",
            self.ports.kwok,
            f"--kubeconfig={self.state}/kubeconfig/kwok.yaml",
            f"--config={self._pki}/kwok.yaml",
            "--manage-all-nodes",
            "--node-ip=127.0.0.1",
            "--node-port=10250",
            f"--server-address=127.0.0.1:{self.ports.kwok}",
            f"--tls-cert-file={self._pki}/kubelet.crt",
            f"--tls-private-key-file={self._pki}/kubelet.key",
            f"--cidr={NO_POD_NETWORK}",
            "--node-lease-duration-seconds=40",
        )
        await self._answers(child)

    async def _answers(self, child: Child) -> None:
        insecure = ssl.create_default_context()
        insecure.check_hostname = False
        insecure.verify_mode = ssl.CERT_NONE
        async with httpx.AsyncClient(verify=insecure, trust_env=False) as http:
            await until_ready(child, lambda: _healthy(http, f"https://127.0.0.1:{child.port}/healthz"), 30)

    async def _run(self, name: str, port: int, *args: str) -> Child:
        tools = os.pathsep.join([str(self.state / "bin"), os.environ.get("PATH", os.defpath)])
        env = {"PATH": tools, "HOME": str(self.state), "LAB_STATE": str(self.state), **_LEAN}
        if name in _MEMORY_LIMIT:
            env["GOMEMLIMIT"] = _MEMORY_LIMIT[name]
        return await self._children.start(name, [str(self._binaries[name]), *args], env=env, port=port)


def _admission() -> dict[str, Any]:
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": _POD_SECURITY}],
    }


async def _healthy(http: httpx.AsyncClient, url: str) -> bool:
    return await _refusal(http, url) is None


async def _refusal(http: httpx.AsyncClient, url: str) -> str | None:
    """Why the question was not answered with 200; None when it was."""
    try:
        answer = await http.get(url, timeout=2)
    except (httpx.HTTPError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None if answer.status_code == httpx.codes.OK else f"{answer.status_code} {answer.text[:200]}"


def _tls(state: Path, client: pki.Pair, authority: str | None) -> ssl.SSLContext:
    """A client context. Without `authority` the server is not verified (the lab's own loopback port)."""
    context = ssl.create_default_context(cadata=authority)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # The ssl module loads client certificates from files only.
    with tempfile.NamedTemporaryFile("w", dir=state, suffix=".pem") as both:
        both.write(client.crt + client.key)
        both.flush()
        context.load_cert_chain(both.name)
    return context


def _replace(path: Path, text: str) -> None:
    """Readable by the owner only, and never half written: the API server reloads such files while they change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as sink:
        sink.write(text)
    fresh.replace(path)


def _write_yaml(path: Path, body: Mapping[str, Any]) -> None:
    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(dict(body), text)
    _replace(path, text.getvalue())


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
