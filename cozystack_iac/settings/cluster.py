"""The cluster as a whole: which release, which variant, and the machines' operating system."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cozystack_iac import releases
from cozystack_iac.settings.base import Document, Flag, Model, Size

Variant = Literal["talos", "generic", "hosted"]
ETCD_QUOTA_BYTES = 8 * 1024**3  # quota-backend-bytes of the Cozystack preset


class ClusterAccess(Model):
    """Access to an existing Kubernetes cluster. An ambient kubeconfig is never used."""

    kubeconfig: str = ""
    """Kubeconfig file, relative to the project; `~` is your home directory. (required for generic and hosted)"""
    context: str = ""
    """Context in that file; the file's current context is ignored. (required for generic and hosted)"""
    identity: str | None = None
    """UID of the namespace kube-system. The run stops if the context points to a different cluster."""


class Cluster(Model):
    """The cluster to install."""

    name: str = ""
    """Name of the site and of the Talos cluster: a lowercase DNS label. (required)"""
    variant: Variant = "talos"
    """talos: machines in Talos maintenance mode. generic: existing k3s, kubeadm or RKE2. hosted: a managed cluster."""
    cozystack: str = releases.DEFAULT
    """Cozystack release; determines the Talos version, the chart's namespace and the supported keys."""
    domain: str = "cozy.local"
    """Kubernetes cluster domain. Cozystack requires cozy.local."""
    endpoint: str | None = None
    """URL of the Kubernetes API. Default: https://<VIP>:6443, else the first control plane node."""
    access: ClusterAccess | None = None
    """Access to an existing cluster (generic and hosted only)."""


class TalosImage(Model):
    """Source of the installer image: one of the three keys. A plain string is a reference."""

    from_release: Flag = True
    """The image pinned by the Cozystack release."""
    reference: str | None = None
    """An explicit image, e.g. a mirror: `registry.example.org/cozystack/talos:v1.13.6`."""
    profile: str | None = None
    """File or https URL of an installer profile (Cozystack's `profiles/installer.yaml`) that determines the version."""

    @property
    def pinned(self) -> bool:
        """Whether the release decides."""
        return self.reference is None and self.profile is None


def _image(value: object) -> object:
    return {"fromRelease": False, "reference": value} if isinstance(value, str) else value


class Talos(Model):
    """Operating system of the machines."""

    version: str | None = None
    """Talos version of the configuration, e.g. v1.13.6; must match the booted machines. Default: pinned by the release."""
    kubernetes: str | None = None
    """Kubernetes version, e.g. v1.33.12. Default: the version that Cozystack tests with."""
    vip: str | None = None
    """VIP of the Kubernetes API, held by one control plane node at a time."""
    image: Annotated[TalosImage, BeforeValidator(_image)] = Field(default_factory=TalosImage)
    """Installer image: `{fromRelease: true}`, `{reference: …}`, `{profile: …}`, or a reference as a plain string."""
    reach: Literal["internal", "public"] = "internal"
    """Whether this workstation uses internal or public addresses; determines the addresses in certificates."""
    extra_sans: tuple[str, ...] = ()
    """Additional names and addresses (SANs) for the certificates of the machines and the API server."""
    extensions: tuple[str, ...] = ("drbd", "zfs")
    """System extensions that every machine must have."""
    kernel_modules: tuple[str, ...] = ()
    """Kernel modules in addition to those Cozystack needs."""
    sysctls: dict[str, str] = Field(default_factory=dict)
    """Sysctls in addition to those Cozystack needs; these override them."""
    lvm_filter: tuple[str, ...] = ("r|^/dev/drbd.*|", "r|^/dev/dm-.*|", "r|^/dev/zd.*|", "r|^/dev/loop.*|")
    """LVM's `global_filter`: the devices that the host's LVM must ignore."""
    nameservers: tuple[str, ...] = ()
    """Nameservers of the machines. Default: from DHCP."""
    time_servers: tuple[str, ...] = ()
    """Time servers of the machines. Default: the Talos default."""
    schedule_on_control_planes: Flag = True
    """Whether ordinary pods may run on control plane nodes."""
    etcd_quota: Size = ETCD_QUOTA_BYTES
    """Size limit of the etcd database."""
    batch: Annotated[int, Field(strict=True, ge=1)] = 3
    """How many workers apply a changed configuration in parallel. Control plane nodes always do so one at a time."""
    patches: tuple[Document, ...] = ()
    """Machine configuration patches, merged last, on every machine."""
