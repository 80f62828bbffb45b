"""ZFS pools, LINSTOR pools and storage classes."""

from typing import Literal

from pydantic import Field

from cozystack_iac.settings.base import Count, Flag, Model, Size
from cozystack_iac.settings.nodes import Layout

GIB = 1024**3


class Storage(Model):
    """Cozystack standardises on ZFS below LINSTOR; there is no other provider."""

    provider: Literal["zfs"] = "zfs"
    """The only supported provider."""
    provisioner: Literal["job", "linstor"] = "job"
    """What creates the pools. `job`: a privileged Job per node, before the platform is installed; it supports every layout, reads
    the disk's identity on the node right before the write, and rejects disks with existing data of any kind. `linstor`: LINSTOR's
    satellite, once the platform is running; this needs no privileged Job, but allows one disk per node only (no mirror, no
    raidz), LINSTOR chooses the pool's options and forces the creation, and some time passes between the last check (of the
    machine's own report and LINSTOR's list of empty disks) and the write."""
    layout: Layout = "single"
    """How a node's data disks are combined."""
    zpool: str = "data"
    """Name of the zpool on every storage node."""
    pool: str = "data"
    """Name of the LINSTOR storage pool."""
    minimum_size: Size = 50 * GIB
    """Smaller data disks are rejected."""
    classes: Literal["create", "adopt", "skip"] = "create"
    """Storage classes `local` (default) and `replicated`: create them, adopt existing ones, or leave them to you."""
    replicas: Count | None = None
    """Replicas of a replicated volume. Default: 3, or the number of storage nodes if smaller. Changing it recreates the storage
    class; existing volumes keep their replicas."""
    approved_disks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By node: the disks that a person has approved for writing, each by its exact serial, WWID or by-id link. Where the machine
    can be queried, any identity of a disk counts, otherwise only those in dataDisks. No other disk is ever written."""
    job_image: str | None = None
    """Image of the job; needs a shell and `nsenter`. Default: a tag of docker.io/alpine/k8s, which the installer chart also pulls
    through the machines' mirrors. Only an image with a digest (`…@sha256:…`) is guaranteed not to change."""
    drop_privileges: Flag = True
    """Disallow privileged pods in namespace cozy-storage-bootstrap once every pool exists."""
