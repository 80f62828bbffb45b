"""The cluster as a whole: which release, which variant, and the machines' operating system."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from cozystack_iac.settings.base import Document, Flag, Model, Size

Variant = Literal["talos", "generic", "hosted"]
ETCD_QUOTA_BYTES = 8 * 1024**3  # quota-backend-bytes of the Cozystack preset


class ClusterAccess(Model):
    """How to reach a Kubernetes cluster that exists already. Nothing ever falls back to an ambient kubeconfig."""

    kubeconfig: str = ""
    """File with the kubeconfig. `~` is the home folder; relative to the project. (required for generic and hosted)"""
    context: str = ""
    """Context inside that file; the file's current context is not trusted. (required for generic and hosted)"""
    identity: str | None = None
    """UID of the namespace kube-system, pinned at first use: the run stops when the context leads somewhere else."""


class Cluster(Model):
    """What is built."""

    name: str = ""
    """Name of the site: a lower-case DNS label, also the Talos cluster name. (required)"""
    variant: Variant = "talos"
    """talos: bare machines in maintenance mode. generic: existing k3s, kubeadm or RKE2. hosted: a managed cluster."""
    cozystack: str = "1.6.2"
    """Cozystack release; decides Talos version, namespace of the chart and known keys."""
    domain: str = "cozy.local"
    """Cluster domain of Kubernetes. Cozystack expects cozy.local."""
    endpoint: str | None = None
    """URL of the Kubernetes API. Default: https://<VIP>:6443, else the first control plane."""
    access: ClusterAccess | None = None
    """Existing clusters only: how to reach them."""


class TalosImage(Model):
    """Where the installer image comes from: one of the three. A plain text in the stack file is a reference."""

    from_release: Flag = True
    """The image pinned by the Cozystack release."""
    reference: str | None = None
    """An explicit image, e.g. a mirror: `registry.example.org/cozystack/talos:v1.13.6`."""
    profile: str | None = None
    """A file or https URL of an installer profile (`profiles/installer.yaml` of Cozystack) to read the version from."""

    @property
    def pinned(self) -> bool:
        """Whether the release decides."""
        return self.reference is None and self.profile is None


def _image(value: object) -> object:
    return {"fromRelease": False, "reference": value} if isinstance(value, str) else value


class Talos(Model):
    """Operating system of the machines."""

    version: str | None = None
    """Configuration contract, e.g. v1.13.6; has to be what the machines run in maintenance. Default: the release's pin."""
    kubernetes: str | None = None
    """Kubernetes version, e.g. v1.33.12. Default: the version Cozystack tests the release with."""
    vip: str | None = None
    """Virtual address of the Kubernetes API, carried by one control plane at a time."""
    image: Annotated[TalosImage, BeforeValidator(_image)] = Field(default_factory=TalosImage)
    """Installer image: `{fromRelease: true}`, `{reference: …}`, `{profile: …}`, or just the reference."""
    reach: Literal["internal", "public"] = "internal"
    """Whether this workstation uses internal or public addresses; decides which addresses certificates must carry."""
    extra_sans: tuple[str, ...] = ()
    """Further names and addresses for the certificates of machines and API server."""
    extensions: tuple[str, ...] = ("drbd", "zfs")
    """System extensions every machine must have."""
    kernel_modules: tuple[str, ...] = ()
    """Kernel modules beside those Cozystack needs."""
    sysctls: dict[str, str] = Field(default_factory=dict)
    """Sysctls beside those Cozystack needs; these win."""
    lvm_filter: tuple[str, ...] = ("r|^/dev/drbd.*|", "r|^/dev/dm-.*|", "r|^/dev/zd.*|", "r|^/dev/loop.*|")
    """`global_filter` of LVM: the devices the host must keep its hands off."""
    nameservers: tuple[str, ...] = ()
    """Name servers of the machines. Default: from DHCP."""
    time_servers: tuple[str, ...] = ()
    """Time servers of the machines. Default: Talos' own."""
    schedule_on_control_planes: Flag = True
    """Whether ordinary pods may run on control planes."""
    etcd_quota: Size = ETCD_QUOTA_BYTES
    """Size limit of etcd's database."""
    batch: Annotated[int, Field(strict=True, ge=1)] = 3
    """How many workers take a later configuration side by side. Control planes always take theirs one by one."""
    patches: tuple[Document, ...] = ()
    """Machine-configuration documents merged last, on every machine."""
