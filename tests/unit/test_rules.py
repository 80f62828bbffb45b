"""Every rule fires on its own mistake and on nothing else; overrides, existing clusters, the lab."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from cozystack_iac import findings
from cozystack_iac.findings import Severity
from cozystack_iac.rules import judge
from tests.sites import GONE, TODAY, changed, codes, existing, found, good, judged, node, site_of

OFFLINE_FAMILIES = frozenset(
    {
        "CFG",
        "CRT",
        "END",
        "INV",
        "NET",
        "OVR",
        "PLT",
        "PUB",
        "RCH",
        "REG",
        "ROL",
        "RUN",
        "SAN",
        "STO",
        "TAL",
        "TEN",
        "VER",
    }
)
ELSEWHERE = frozenset({"CFG-001", "CFG-006", "CFG-007", "CFG-008"})  # files: test_settings_load.py
FOREIGN = frozenset(
    {"CRT-020", "CRT-021", "RCH-001", "RUN-010", "TAL-101", "TAL-102", "TAL-103"}
)  # declared by other rooms, tested there


def certificate(*, until: datetime, since: datetime | None = None, ca: bool = True) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Site CA")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(since or until - timedelta(days=400))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()


def private_key() -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


NOW = datetime.combine(TODAY, datetime.min.time(), UTC)
VALID = certificate(until=NOW + timedelta(days=30))
EXPIRED = certificate(until=NOW - timedelta(days=30))
NAT = [(f"nodes.{n}.publicAddress", f"198.51.100.{n + 1}") for n in range(3)]
BY_LINSTOR = [
    ("storage.provisioner", "linstor"),
    *[(f"nodes.{n}.dataDisks.0.byId", f"ata-SSD_DATA000{n + 1}") for n in (1, 2, 0)],
]
ALLOWED = {"guardrail": "STO-012", "reason": "a test site", "until": "2027-01-31"}

BAD: list[tuple[str, list[tuple[str, Any]]]] = [
    ("CFG-002", [("frob", 1)]),
    ("CFG-003", [("waits.linstor", 5)]),
    ("CFG-004", [("cluster.name", GONE)]),
    ("CFG-004", [("nodes.0.role", GONE)]),
    ("CFG-004", [("nodes.0.name", GONE), ("storage.approvedDisks.cp1", GONE)]),
    ("CFG-004", [("nodes.0.address", GONE)]),
    ("CFG-004", [("publishing.host", GONE)]),
    ("CFG-004", [("nodes", []), ("storage.approvedDisks", {})]),
    ("CFG-005", [("talos.vip", {"secure": "v1:x"})]),
    ("CRT-001", [("publishing.certificates.solver", "dns01")]),
    ("CRT-001", [("publishing.certificates.dns01", {"provider": "cloudflare"})]),
    ("CRT-002", [("publishing.certificates", {"solver": "dns01", "dns01": {"provider": "route53"}, "issuer": "x"})]),
    ("CRT-002", [("publishing.certificates", {"solver": "dns01", "dns01": {}, "issuer": "x"})]),
    ("CRT-003", [("publishing.certificates", {"wildcard": True})]),
    (
        "CRT-004",
        [
            ("publishing.host", "10-0-0-11.nip.io"),
            ("publishing.certificates", {"solver": "dns01", "dns01": {"provider": "cloudflare"}}),
        ],
    ),
    ("CRT-005", [("publishing.certificates", {"wildcard": True, "wildcardSecretName": "wild", "issuer": "x"})]),
    ("CRT-006", [("publishing.certificates.issuer", "in-house")]),
    ("CRT-007", [("publishing.certificates.issuer", "letsencrypt-stage")]),
    ("CRT-008", [("publishing.certificates.issuer", "letsencrypt-prod")]),
    ("CRT-009", [("publishing.host", "10-0-0-11.nip.io"), ("publishing.certificates.issuer", "letsencrypt-prod")]),
    ("CRT-010", [("publishing.certificates.issuer", "My Issuer")]),
    ("END-001", [("cluster.endpoint", "https://127.0.0.1:6443")]),
    ("END-001", [("cluster.endpoint", "https://joe@10.0.0.10:6443")]),
    ("END-001", [("cluster.endpoint", "https://[fd00::1:6443")]),
    ("END-001", [("cluster.endpoint", "https://10.0.0.10:six")]),
    ("END-001", [("cluster.endpoint", "https:// 10.0.0.10:6443")]),
    ("END-001", [("cluster.endpoint", "https://10.0.0.10:6443?a=b")]),
    ("END-001", [("publishing.apiServerEndpoint", "api.cluster.example.org")]),
    ("END-001", [("access.keycloakInternalUrl", "keycloak")]),
    ("END-001", [("network.apiServerHost", "https://x")]),
    ("END-001", [("network.apiServerPort", 0)]),
    ("END-002", [("cluster.endpoint", "https://10.0.0.99:6443")]),
    ("END-002", [("cluster.endpoint", "https://10.0.0.11:6443"), ("talos.vip", GONE)]),
    ("END-002", [("nodes.2", node(4, "worker")), ("cluster.endpoint", "https://10.0.0.14:6443"), ("talos.vip", GONE)]),
    ("END-003", [("cluster.domain", "")]),
    ("END-004", [("cluster.domain", "cluster.local")]),
    ("END-005", [("publishing.apiServerEndpoint", "https://api.cluster.example.org:6443")]),
    ("INV-001", [("nodes.0.name", "Ü")]),
    ("INV-002", [("nodes.1.name", "cp1")]),
    ("INV-003", [("nodes.0.address", "0x0a00000b")]),
    ("INV-003", [("nodes.0.address", "cp1.example.org")]),
    ("INV-003", [("nodes.0.address", "fe80::1%eth0")]),
    ("INV-003", [("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.50/24"]})]),
    ("INV-004", [("nodes.0.address", "127.0.0.1")]),
    ("INV-004", [("nodes.0.address", "169.254.3.3")]),
    ("INV-004", [("nodes.0.address", "255.255.255.255")]),
    ("INV-004", [("nodes.0.address", "240.0.0.1")]),
    ("INV-005", [("nodes.0.publicAddress", "10.0.0.12")]),
    ("INV-006", [("nodes.1.address", "fd00::12")]),
    ("INV-007", [("nodes.0.labels", {"a b": "c"})]),
    ("INV-007", [("nodes.0.labels", {"example.org/a": "not valid!"})]),
    ("INV-007", [("nodes.0.labels", {"not a domain/a": "b"})]),
    ("INV-007", [("nodes.0.zone", "rack a"), ("nodes.1.zone", "a"), ("nodes.2.zone", "a")]),
    ("INV-008", [("cluster.name", "Prod_EU1")]),
    ("INV-009", [("nodes.0.name", "talos")]),
    ("INV-010", [("nodes.0.zone", "a")]),
    ("INV-011", [("nodes.0.reset", {"approved": True})]),
    ("INV-011", [("removed", [{"name": "cp9", "lost": {"approved": True}}])]),
    ("INV-012", [("nodes.0.reset", {"approved": True, "reason": "reused machine"})]),
    ("INV-013", [("nodes.0.addresses", ["10.0.0.11"])]),
    ("INV-013", [("nodes.0.addresses", ["10.0.0.99/24"])]),
    ("INV-013", [("nodes.0.gateway", "10.0.0.1")]),
    ("INV-013", [("nodes.0.addresses", ["10.0.0.11/24"]), ("nodes.0.gateway", "10.0.1.1")]),
    ("INV-014", [("nodes.0.link", "a link with a long name")]),
    ("INV-015", [("nodes.0.publicAddress", "192.168.5.5")]),
    ("INV-016", [("removed", [{"name": "cp1"}])]),
    ("INV-016", [("removed", [{"reset": {"approved": True, "reason": "sold"}}])]),
    ("INV-016", [("removed", [{"name": "w9"}, {"name": "w9"}])]),
    ("NET-001", [("network.podCIDR", "10.244.0.0")]),
    ("NET-001", [("network.podCIDR", "10.244.0.0/255.255.0.0")]),
    ("NET-001", [("network.nodeCIDR", "::ffff:10.0.0.0/120")]),
    ("NET-002", [("network.nodeCIDR", "10.0.0.1/24")]),
    ("NET-003", [("network.joinCIDR", "100.64.0.0/16,100.65.0.0/16")]),
    ("NET-004", [("network.joinCIDR", "10.96.0.0/12")]),
    ("NET-004", [("network.nodeCIDR", "10.0.0.0/9")]),
    ("NET-004", [("network.loadBalancerPools", ["10.244.8.0/24"])]),
    ("NET-004", [("network.loadBalancerPools", ["10.0.0.200-10.0.0.210", "10.0.0.205-10.0.0.220"])]),
    ("NET-005", [("network.joinCIDR", "fd12::/64")]),
    ("NET-006", [("network.nodeMask", 200)]),
    ("NET-007", [("network.serviceCIDR", "10.96.0.0/11")]),
    ("NET-007", [("network.serviceCIDR", "10.96.0.0/24")]),
    ("NET-008", [("network.joinCIDR", "100.64.0.0/30")]),
    ("NET-009", [("network.podGateway", "10.96.0.1")]),
    ("NET-009", [("network.podGateway", "10.244.0.0")]),
    ("NET-009", [("network.podGateway", "10.244.0.1/16")]),
    ("NET-009", [("network.podGateway", "gateway")]),
    ("NET-010", [("talos.vip", "10.244.0.10"), ("network.nodeCIDR", GONE)]),
    ("NET-010", [("talos.nameservers", ["10.96.0.10"])]),
    ("NET-010", [("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.244.3.3"]})]),
    ("NET-011", [("nodes.0.address", "100.101.7.7")]),
    ("NET-012", [("network.podCIDR", "172.16.0.0/15")]),
    ("NET-013", [("network.kubespan", True), ("network.loadBalancerPools", ["fd12::/64"])]),
    ("NET-014", [("nodes.0.address", "10.0.1.11")]),
    ("NET-015", [("network.reserved", ["10.0.0.0"])]),
    ("NET-015", [("network.loadBalancerPools", ["10.0.0.20-10.0.0.10"])]),
    ("NET-016", [("network.loadBalancerPools", ["10.0.0.0/28"])]),
    (
        "NET-016",
        [
            ("network.loadBalancerPools", ["10.0.0.48/28"]),
            ("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.50"]}),
        ],
    ),
    ("NET-017", [("network.podCIDR", "8.8.0.0/16")]),
    ("NET-019", [("network.masterNodes", ["10.0.0.99"])]),
    ("NET-021", [("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.10"]})]),
    ("NET-022", [("talos.vip", "255.255.255.255"), ("network.nodeCIDR", GONE)]),
    ("NET-023", [("talos.vip", "vip.example.org")]),
    ("NET-024", [("talos.vip", "10.0.1.10")]),
    ("NET-024", [("talos.vip", "10.0.0.255")]),
    ("NET-024", [("talos.vip", "192.168.0.10"), ("network.nodeCIDR", GONE)]),
    ("NET-026", [("talos.vip", GONE)]),
    ("NET-028", [("nodes.2", node(4, "worker", vips=[{"address": "10.0.0.9"}]))]),
    ("NET-029", [("nodes.0.vips", [{"address": "10.0.0.9"}, {"address": "10.0.0.9"}])]),
    ("NET-031", [("nodes.0.vips", [{"address": "10.0.0.9", "link": "ens9"}])]),
    ("NET-033", [("publishing.provider", "aws")]),
    ("NET-032", [("talos.vip", "fd00::10")]),
    ("OVR-001", [("allow", [{"guardrail": "all", "reason": "x", "until": "2027-01-31"}])]),
    ("OVR-001", [("allow", [{"guardrail": "INV-005", "reason": "x", "until": "2027-01-31"}])]),
    ("OVR-001", [("allow", [{"guardrail": "INV-999", "reason": "x", "until": "2027-01-31"}])]),
    ("OVR-002", [("allow", [{"guardrail": "STO-012", "until": "2027-01-31"}])]),
    ("OVR-003", [("allow", [{"guardrail": "STO-012", "reason": "x", "until": "2026-11-29"}])]),
    ("OVR-004", [("allow", [ALLOWED])]),
    ("OVR-005", [("allow", [{"guardrail": "STO-012", "reason": "x"}])]),
    ("OVR-006", [("allow", [ALLOWED, ALLOWED])]),
    ("PLT-001", [("platform.variant", "isp-full-generic")]),
    ("PLT-002", [("platform.bundles.system", False)]),
    ("PLT-003", [("platform.bundles.enable", ["external-dns"])]),
    ("PLT-003", [("platform.bundles.enable", ["cozystack.frob"])]),
    ("PLT-003", [("platform.bundles", {"enable": ["cozystack.hami"], "disable": ["cozystack.hami"]})]),
    ("PLT-004", [("platform.bundles.disable", ["cozystack.cert-manager"])]),
    ("PLT-005", [("platform.values", {"networking": {"podCIDR": "10.1.0.0/16"}})]),
    ("PLT-005", [("platform.values", {"sourceRef": {"name": "x"}})]),
    ("PLT-006", [("platform.values", {"publishing": {"exposureClass": "x"}})]),
    ("PLT-006", [("cluster.cozystack", "1.5.4"), ("platform.values", {"publishing": {"ingressNameAdmin": "x"}})]),
    ("PLT-007", [("platform.chart", "oci://ghcr.io/cozystack/cozystack/cozy-installer:1.6.2")]),
    ("PLT-007", [("platform.chart", "https://example.org/chart.tgz")]),
    ("PLT-007", [("platform.chart", " ")]),
    ("PLT-009", [("network.apiServerHost", "10.0.0.9")]),
    ("PLT-012", [("cluster.access", {"kubeconfig": "x", "context": "y"})]),
    ("PUB-001", [("publishing.host", "not a host")]),
    ("PUB-001", [("publishing.host", "https://cluster.example.org")]),
    ("PUB-001", [("publishing.host", "*.cluster.example.org")]),
    ("PUB-001", [("publishing.host", "10.0.0.11")]),
    ("PUB-001", [("publishing.host", "cluster")]),
    ("PUB-002", [("publishing.hostOwned", GONE)]),
    ("PUB-003", [("publishing.host", "example.org")]),
    ("PUB-003", [("publishing.host", "cluster.local"), ("publishing.certificates", {})]),
    ("PUB-004", [("publishing.host", "10-0-0-99.nip.io")]),
    ("PUB-004", [("publishing.host", "cluster.nip.io")]),
    ("PUB-005", [("publishing.host", "10-0-0-11.nip.io")]),
    ("PUB-006", [("publishing.exposed", ["dashboard", "apy"])]),
    ("PUB-006", [("publishing.exposed", ["dashboard", "linstor-gui"])]),
    ("PUB-006", [("publishing.exposed", ["dashboard", "keycloak"])]),
    ("PUB-007", [*NAT, ("publishing.provider", "gcp"), ("publishing.externalIPs.strategy", "external")]),
    ("PUB-008", [("publishing.externalIPs.strategy", "explicit")]),
    ("PUB-008", [("publishing.externalIPs.strategy", "external")]),
    ("PUB-008", [("publishing.externalIPs.addresses", ["10.0.0.50"])]),
    ("PUB-008", [("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.50", "10.0.0.50"]})]),
    ("PUB-009", [("publishing.loadBalancerClass", "x")]),
    (
        "PUB-009",
        [
            ("publishing.loadBalancer", True),
            ("network.loadBalancerPools", ["10.0.0.192/27"]),
            ("publishing.externalIPs", {"strategy": "explicit", "addresses": ["10.0.0.50"]}),
        ],
    ),
    ("PUB-010", [("publishing.loadBalancer", True)]),
    ("PUB-011", [("publishing.proxyProtocol", True)]),
    ("PUB-012", [("publishing.exposed", ["api"])]),
    ("RCH-002", [("publishing.reachability", "skip")]),
    ("RCH-003", [("publishing.resolvers", ["9.9.9.9", "dns.example.org"])]),
    (
        "REG-001",
        [
            (
                "network.registries.mirrors",
                {"not a host": {"endpoints": ["https://m.example.org"]}, "docker.io": {"endpoints": ["https://m"]}},
            )
        ],
    ),
    ("REG-001", [("network.registries.mirrors", {"docker.io": {}})]),
    ("REG-001", [("network.registries.mirrors", {"docker.io": {"endpoints": ["m.example.org"]}})]),
    ("REG-002", [("network.registries.config", {"m.example.org": {"tls": {"insecureSkipVerify": True}}})]),
    ("REG-003", [("network.registries.config", {"m.example.org": {"auth": {"username": "joe"}}})]),
    ("REG-004", [("network.proxy.https", "proxy.example.org:3128")]),
    ("REG-005", [("network.proxy", {"https": "http://proxy.example.org:3128", "noProxy": ["a b"]})]),
    ("REG-006", [("network.proxy.http", "http://proxy.example.org:3128")]),
    ("REG-007", [("network.proxy.trustedRoots", VALID + EXPIRED)]),
    ("REG-007", [("network.proxy.trustedRoots", "hello")]),
    ("REG-007", [("network.proxy.trustedRoots", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n")]),
    ("REG-007", [("network.proxy.trustedRoots", certificate(until=NOW + timedelta(days=9), ca=False))]),
    (
        "REG-007",
        [("network.proxy.trustedRoots", certificate(until=NOW + timedelta(days=9), since=NOW + timedelta(days=3)))],
    ),
    ("REG-008", [("network.proxy.trustedRoots", VALID + private_key())]),
    ("REG-009", [("network.registries.mirrors", {"ghcr.io": {"endpoints": ["https://m.example.org"]}})]),
    ("ROL-001", [(f"nodes.{n}.role", "worker") for n in range(3)]),
    ("ROL-002", [("nodes.2.role", "worker")]),
    ("ROL-003", [("nodes", [node(1)]), ("storage.approvedDisks", {"cp1": ["DATA0001"]})]),
    (
        "ROL-004",
        [
            ("nodes", [node(n) for n in range(1, 10)]),
            ("storage.approvedDisks", {f"cp{n}": [f"DATA{n:04}"] for n in range(1, 10)}),
        ],
    ),
    ("ROL-005", [("talos.scheduleOnControlPlanes", False)]),
    ("RUN-001", [("protect", False)]),
    ("RUN-002", [("lab", {})]),
    ("RUN-003", [("checks", "offline")]),
    ("RUN-004", [("waits.linstor", "5m")]),
    ("SAN-001", [("nodes.0.extraSans", ["a b"])]),
    ("SAN-002", [("talos.reach", "public")]),
    ("SAN-003", [("talos.extraSans", ["k8s.example.org", "k8s.example.org"])]),
    (
        "SAN-004",
        [("nodes.0.address", "198.51.100.1"), ("nodes.0.publicAddress", "198.51.100.1"), ("network.nodeCIDR", GONE)],
    ),
    ("STO-001", [("nodes.0.installDisk", GONE)]),
    ("STO-002", [("nodes.0.installDisk", {"byId": "a/b"})]),
    ("STO-002", [("nodes.0.installDisk", {"serial": " S1"})]),
    ("STO-003", [("nodes.0.dataDisks", [{"byId": "nvme-X-part1"}]), ("storage.approvedDisks.cp1", ["nvme-X-part1"])]),
    (
        "STO-004",
        [
            ("nodes.0.dataDisks", [{"serial": "DATA0001"}, {"serial": "DATA0001"}]),
            ("storage.layout", "single"),
            ("nodes.0.layout", "mirror"),
        ],
    ),
    ("STO-005", [("nodes.1.installDisk", {"serial": "SYS0001"})]),
    ("STO-006", [("nodes.0.layout", "mirror")]),
    ("STO-006", [("nodes.0.dataDisks", [{"serial": "A"}, {"serial": "B"}]), ("storage.approvedDisks.cp1", ["A", "B"])]),
    ("STO-007", [("nodes.0.installDisk", {"selector": "disk.size < 1u * TiB"})]),
    ("STO-008", [("storage.approvedDisks.cp1", [])]),
    ("STO-009", [("storage.approvedDisks.cp9", ["X"])]),
    ("STO-009", [("storage.approvedDisks.cp1", ["DATA0001", "X"])]),
    ("STO-010", [("storage.zpool", "mirror-pool")]),
    ("STO-010", [("storage.pool", "my pool")]),
    ("STO-011", [("storage.replicas", 5)]),
    ("STO-012", [("nodes.2.dataDisks", []), ("storage.approvedDisks.cp3", GONE)]),
    ("STO-013", [*[(f"nodes.{n}.dataDisks", []) for n in range(3)], ("storage.approvedDisks", {})]),
    ("STO-014", [("storage.minimumSize", "20GiB")]),
    ("STO-015", [("nodes.0.installDisk", {"byId": " "})]),
    ("STO-016", [("storage.classes", "skip")]),
    ("STO-017", [("storage.approvedDisks.cp1", ["naa.5000c500a1b2c3d4"])]),
    ("STO-030", [("storage.provisioner", "linstor"), ("nodes.0.layout", "mirror")]),
    ("STO-030", [("storage.provisioner", "linstor"), ("nodes.0.dataDisks", [{"serial": "A"}, {"serial": "B"}])]),
    ("STO-018", [("storage.jobImage", "registry.example.org/tools/k8s:1.36.2")]),
    ("TAL-001", [("nodes.0.image", "a b")]),
    ("TAL-002", [("talos.image", {"reference": "a/b:v1.13.6", "profile": "x.yaml", "fromRelease": False})]),
    ("TAL-002", [("talos.image", {"fromRelease": False})]),
    ("TAL-003", [("talos.extensions", ["drbd"])]),
    ("TAL-003", [("talos.extensions", ["drbd", "zfs", "openvswitch"])]),
    ("TAL-004", [("talos.patches", [{"machine": {"kernel": {"modules": [{"name": "zfs"}]}}}])]),
    ("TAL-005", [("talos.patches", [{"machine": {"files": [{"path": "/etc/cri/conf.d/20-customization.part"}]}}])]),
    ("TAL-006", [("talos.patches", [{"apiVersion": "v1alpha1", "kind": "HostnameConfig", "auto": "off"}])]),
    ("TAL-007", [("talos.sysctls", {"net core": "1"})]),
    ("TAL-007", [("nodes.0.sysctls", {"net.core.somaxconn": ""})]),
    ("TAL-008", [("talos.lvmFilter", ["r|^/dev/drbd.*|"])]),
    ("TAL-009", [("talos.patches", [{"machine": {"files": [{"path": "/etc/foo", "op": "create"}]}}])]),
    ("TAL-010", [("talos.patches", [{"cluster": {"network": {"cni": {"name": "flannel"}}}}])]),
    ("TAL-010", [("talos.patches", [{"cluster": {"ca": {"crt": "x"}}}])]),
    ("TAL-011", [("talos.patches", [{"kind": "LinkConfig", "name": "eth0"}])]),
    ("TAL-011", [("talos.patches", [{"apiVersion": "v1alpha1", "kind": "LinkConfig", "metadata": {}}])]),
    ("TAL-011", [("talos.patches", [{"apiVersion": "v1alpha1", "kind": "SysctlConfig"}])]),
    ("TAL-011", [("talos.patches", [{"network": {}}])]),
    ("TAL-011", [("talos.patches", [{"machine": {"network": {"interfaces": [{"interface": "eth0"}]}}}])]),
    ("TEN-001", [("tenant.ingress", False)]),
    ("TEN-002", [("tenant.etcd", False)]),
    ("VER-001", [("cluster.cozystack", "1.2.0")]),
    ("VER-002", [("cluster.cozystack", "1.6.0-rc.1")]),
    ("VER-002", [("cluster.cozystack", "1.6.99")]),
    ("VER-002", [("cluster.cozystack", "1.7.0")]),
    ("VER-003", [("talos.version", "1.13.6")]),
    ("VER-003", [("talos.version", "v1.99.0")]),
    ("VER-004", [("talos.version", "v1.13.7")]),
    ("VER-005", [("nodes.0.image", "ghcr.io/x/talos:v1.12.6")]),
    ("VER-006", [("talos.kubernetes", "v1.50.0")]),
    ("VER-006", [("talos.kubernetes", "1.33.12")]),
    ("VER-007", [("talos.kubernetes", "v1.33.9")]),
    ("VER-009", [("cluster.cozystack", "1.4.6"), ("access.oidc", False)]),
    (
        "VER-010",
        [("cluster.cozystack", "1.4.6"), ("access.keycloakInternalUrl", "https://keycloak.cluster.example.org/")],
    ),
    ("VER-011", [("cluster.cozystack", "1.6.0")]),
    ("VER-012", [("cluster.cozystack", "1.4.6"), ("tenant.gateway", True)]),
    ("VER-012", [("cluster.cozystack", "1.3.6"), ("publishing.proxyProtocol", True), ("publishing.provider", "aws")]),
]

BAD_EXISTING: list[tuple[str, list[tuple[str, Any]]]] = [
    ("CFG-004", [("cluster.access.context", GONE)]),
    ("NET-018", [("network.podCIDR", GONE)]),
    ("NET-027", [("talos", {"vip": "10.0.0.10"})]),
    ("PLT-008", [("platform.prism", False)]),
    ("PLT-010", [("access.kubeconfigFile", "~/.kube/k3s")]),
    ("PLT-011", [("network.apiServerHost", "10.0.0.11")]),
    ("PLT-013", [("cluster.access.identity", GONE)]),
    ("STO-031", BY_LINSTOR[:-1]),
    ("STO-031", [*BY_LINSTOR[:-1], ("nodes.0.dataDisks", [{"byId": "ata-X_1"}])]),
    ("TAL-012", [("talos", {"sysctls": {"net.core.somaxconn": "1"}})]),
    ("PLT-015", [("cluster.variant", "hosted")]),
    ("PLT-014", [("publishing.apiServerEndpoint", "https://127.0.0.1:7445")]),
    ("VER-008", [("cluster.variant", "hosted")]),
    ("PLT-002", [("cluster.variant", "hosted"), ("platform.bundles", {"system": True, "iaas": True})]),
]


def test_a_good_site_has_nothing_above_a_note() -> None:
    assert codes(judged(good())) == []
    assert codes(judged(existing())) == []


@pytest.mark.parametrize(("code", "changes"), BAD, ids=[f"{row[0]} {row[1][0][0]}" for row in BAD])
def test_a_rule_fires_on_its_mistake(code: str, changes: list[tuple[str, Any]]) -> None:
    finding = found(changed(good(), *changes), code)
    assert finding.problem
    assert finding.fix


@pytest.mark.parametrize(("code", "changes"), BAD_EXISTING, ids=[f"{row[0]} {row[1][0][0]}" for row in BAD_EXISTING])
def test_a_rule_about_existing_clusters_fires(code: str, changes: list[tuple[str, Any]]) -> None:
    assert found(changed(existing(), *changes), code).fix


def test_every_offline_rule_has_a_row_here() -> None:
    declared = {rule.code for rule in findings.rules() if rule.code.partition("-")[0] in OFFLINE_FAMILIES}
    assert declared - FOREIGN - ELSEWHERE == {code for code, _ in (*BAD, *BAD_EXISTING)} | {"NET-011"}


def test_every_rule_says_what_why_and_how() -> None:
    assert [rule.code for rule in findings.rules() if not (rule.title and rule.why and rule.remedy)] == []


# Aggregation ------------------------------------------------------------------------------------------------------------


def test_a_thousand_nodes_in_the_pod_range_are_one_finding() -> None:
    nodes = [node(1, name=f"n{n}", address=f"10.244.{n // 250}.{n % 250 + 1}") for n in range(1000)]
    problem = found(changed(good(), ("nodes", nodes)), "NET-010").problem
    assert "and 997 more" in problem


def test_a_free_range_is_really_free() -> None:
    raw = changed(good(), ("network.podCIDR", "10.96.0.0/16"), ("network.reserved", ["10.244.0.0/16", "10.42.0.0/16"]))
    command = found(raw, "NET-004").command
    assert command is not None
    assert command.endswith(" 10.128.0.0/16")
    assert codes(judged(changed(raw, ("network.podCIDR", "10.128.0.0/16")))) == []


def test_findings_are_sorted_worst_first_and_by_number() -> None:
    nodes = [node(n, name=f"N{n}") for n in range(1, 12)]
    result = judged(changed(good(), ("nodes", nodes)))
    assert [f.severity.rank for f in result] == sorted(f.severity.rank for f in result)
    names = [finding.path for finding in result if finding.code == "INV-001"]
    assert names == [f"cozystack:nodes[{n}].name" for n in range(11)]


# Overrides --------------------------------------------------------------------------------------------------------------

TWO_STORAGE_NODES: list[tuple[str, Any]] = [("nodes.2.dataDisks", []), ("storage.approvedDisks.cp3", GONE)]


def test_an_override_turns_the_finding_into_a_note_with_its_reason() -> None:
    raw = changed(good(), *TWO_STORAGE_NODES, ("allow", [ALLOWED]))
    finding = found(raw, "STO-012")
    assert finding.severity is Severity.NOTE
    assert "a test site" in finding.fix
    assert codes(judged(raw)) == []


@pytest.mark.parametrize("spoiled", [{"reason": " "}, {"until": "2026-11-29"}, {"guardrail": "sto-012"}])
def test_an_override_that_is_not_valid_overrides_nothing(spoiled: dict[str, Any]) -> None:
    raw = changed(good(), *TWO_STORAGE_NODES, ("allow", [ALLOWED | spoiled]))
    assert found(raw, "STO-012").severity is Severity.WARNING
    assert judged(raw).blocking


def test_an_override_holds_through_its_last_day() -> None:
    raw = changed(good(), *TWO_STORAGE_NODES, ("allow", [ALLOWED | {"until": TODAY.isoformat()}]))
    assert codes(judged(raw)) == []


def test_the_look_from_outside_is_skipped_by_whoever_says_why() -> None:
    raw = changed(good(), ("publishing.reachability", "skip"), ("allow", [ALLOWED | {"guardrail": "RCH-002"}]))
    assert codes(judged(raw)) == []
    assert found(raw, "RCH-002").fix == f"overridden: {ALLOWED['reason']}"


def test_a_live_check_may_be_named() -> None:
    assert "OVR-001" not in judged(changed(good(), ("allow", [ALLOWED | {"guardrail": "XYZ-011"}]))).codes


# Existing clusters and the lab ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("NET-004", [("network.podCIDR", "10.43.0.0/16")]),
        ("NET-006", [("network.podCIDR", "10.42.0.0/24")]),
        ("ROL-002", [("nodes.2.role", "worker")]),
    ],
)
def test_an_existing_cluster_is_warned_where_a_new_one_is_refused(code: str, changes: list[tuple[str, Any]]) -> None:
    raw = changed(existing(), *changes)
    assert found(raw, code).severity is Severity.WARNING
    fresh = changed(raw, ("cluster.variant", "talos"), ("cluster.access", GONE), ("talos", {"vip": "10.0.0.10"}))
    assert found(fresh, code).severity is Severity.ERROR


def test_a_hosted_cluster_needs_no_nodes() -> None:
    raw = changed(
        existing(),
        ("cluster.variant", "hosted"),
        ("nodes", GONE),
        ("storage", GONE),
        ("platform.bundles", {"system": True, "disable": ["cozystack.backupstrategy-controller"]}),
    )
    assert codes(judged(raw)) == []


def lab() -> dict[str, Any]:
    raw = changed(
        good(), ("lab", {"httpsPort": 8443}), ("talos.vip", "127.10.0.10"), ("network.nodeCIDR", "127.10.0.0/24")
    )
    return changed(raw, *[(f"nodes.{n}.address", f"127.10.0.{n + 11}") for n in range(3)])


def test_a_lab_lives_on_loopback() -> None:
    assert codes(judged(lab())) == []


def test_a_lab_asks_no_resolver_of_the_real_world() -> None:
    raw = changed(lab(), ("lab.resolver", "127.10.53.1:5353"), ("publishing.resolvers", ["9.9.9.9"]))
    assert found(raw, "RUN-002").path == "cozystack:publishing.resolvers[0]"


def test_without_saying_so_loopback_is_refused() -> None:
    assert {"INV-004", "NET-022"} <= judged(changed(lab(), ("lab", GONE))).codes


def test_a_lab_never_names_a_real_machine() -> None:
    assert found(changed(lab(), ("nodes.1.address", "10.0.0.12")), "RUN-002").severity is Severity.ERROR


# What must not be reported ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        [
            ("publishing.host", "my-cluster.eu"),
            ("publishing.certificates", {"solver": "dns01", "dns01": {"provider": "cloudflare"}}),
        ],
        [("nodes.0.labels", {"topology.kubernetes.io/rack": "r1", "gpu": ""})],
        [("nodes.0.addresses", ["10.0.0.11/24", "192.168.5.2/24"]), ("nodes.0.gateway", "10.0.0.1")],
        [
            ("nodes.0.vips", [{"address": "10.0.0.9", "link": "ens9"}]),
            ("nodes.0.patches", [{"apiVersion": "v1alpha1", "kind": "LinkConfig", "name": "ens9"}]),
        ],
        [("network.loadBalancerPools", ["10.0.0.192/27"]), ("publishing.loadBalancer", True)],
        [("talos.extraSans", ["*.k8s.example.org", "203.0.113.9", "fd00::1"])],
        [
            *NAT,
            ("talos.reach", "public"),
            ("publishing.provider", "oci"),
            ("talos.vip", GONE),
            ("cluster.endpoint", "https://k8s.example.org:6443"),
        ],
        [*NAT, ("publishing.provider", "hetzner"), ("publishing.externalIPs.strategy", "external")],
        [
            (
                "network.proxy",
                {
                    "http": "http://joe:x@p:3128",
                    "https": "http://p:3128",
                    "noProxy": [".example.org", "10.0.0.0/8", "10.0.0.1"],
                },
            )
        ],
        [("network.proxy.trustedRoots", VALID)],
        [
            (
                "network.registries.mirrors",
                {
                    "docker.io": {"endpoints": ["https://mirror.gcr.io", "http://10.0.0.5:5000/v2"]},
                    "*": {"endpoints": ["https://m"]},
                },
            )
        ],
        [("platform.values", {"branding": {"a": {"b": 1}}, "resources": {"cpuAllocationRatio": 5}, "gpu": {"x": 1}})],
        [
            (
                "talos.patches",
                [
                    {"machine": {"sysctls": {"a.b": "1"}}},
                    {"apiVersion": "v1alpha1", "kind": "VolumeConfig", "name": "EPHEMERAL"},
                ],
            )
        ],
        [("talos.version", "v1.13.6"), ("talos.kubernetes", "v1.33.12")],
        [("nodes.0.dataDisks", [{"byId": "/dev/disk/by-id/nvme-X"}]), ("storage.approvedDisks.cp1", ["nvme-X"])],
        [
            ("nodes.0.dataDisks", [{"serial": "A"}, {"serial": "B"}]),
            ("nodes.0.layout", "mirror"),
            ("storage.approvedDisks.cp1", ["A", "B"]),
        ],
        [("platform.bundles.enable", ["cozystack.linstor-gui"]), ("publishing.exposed", ["dashboard", "linstor-gui"])],
        [("cluster.endpoint", "https://k8s.example.org:6443"), ("talos.vip", GONE)],
        [
            ("network", {"podCIDR": "fd10::/48", "serviceCIDR": "fd11::/108", "joinCIDR": "fd12::/64"}),
            *[(f"nodes.{n}.address", f"fd00::{n + 1}") for n in range(3)],
            ("talos.vip", "fd00::10"),
        ],
    ],
)
def test_what_is_fine_is_not_reported(changes: list[tuple[str, Any]]) -> None:
    assert codes(judged(changed(good(), *changes))) == []


def test_a_partition_can_store_data_where_the_job_alone_looks_at_it() -> None:
    part = [("nodes.0.dataDisks", [{"byId": "nvme-X-part3"}]), ("storage.approvedDisks.cp1", ["nvme-X-part3"])]
    assert "STO-003" in codes(judged(changed(good(), *part)))
    assert "STO-003" not in codes(judged(changed(existing(), *part)))


def test_a_verdict_needs_nothing_but_the_site() -> None:
    assert not judge(site_of(good()), TODAY).blocking
