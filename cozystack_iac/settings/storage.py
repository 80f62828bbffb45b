"""ZFS pools, LINSTOR pools and storage classes."""

from typing import Literal

from pydantic import Field

from cozystack_iac.settings.base import Count, Flag, Model, Size
from cozystack_iac.settings.nodes import Layout

GIB = 1024**3


class Storage(Model):
    """Cozystack standardises on ZFS below LINSTOR; there is no other provider."""

    provider: Literal["zfs"] = "zfs"
    """The only one there is."""
    provisioner: Literal["job", "linstor"] = "job"
    """Who makes the pools. `job`: a privileged Job per node, before the platform; every layout, the disk's identity is read on
    the node immediately before the write, leftovers of every kind are refused by name. `linstor`: LINSTOR's satellite, once the
    platform runs; nothing of ours is ever privileged, but one disk per node (no mirror, no raidz), LINSTOR chooses the pool's
    options and creates it by force, and between our last look (the machine's own word, and LINSTOR's list of empty disks) and
    its write is as much time as it takes."""
    layout: Layout = "single"
    """How a node's data disks are combined."""
    zpool: str = "data"
    """Name of the zpool on every storage node."""
    pool: str = "data"
    """Name of the LINSTOR storage pool."""
    minimum_size: Size = 50 * GIB
    """Smaller data disks are refused."""
    classes: Literal["create", "adopt", "skip"] = "create"
    """Storage classes `local` (default) and `replicated`: make them, use existing ones as they are, or do not care."""
    replicas: Count | None = None
    """Copies of replicated volumes. Default: 3, or the number of storage nodes if smaller. With another number the class is made
    anew; volumes that exist keep the copies they have."""
    approved_disks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By node: the disks a person has approved for writing, each by its serial, WWID or link below by-id, letter by letter. Any
    of a disk's identities counts where the machine can be asked, else one that dataDisks names. Nothing else is ever written."""
    job_image: str | None = None
    """Image of the job; needs a shell and `nsenter`. Default: a tag of docker.io/alpine/k8s that the installer chart pulls, too,
    through the machines' mirrors; only an image named with its digest (`…@sha256:…`) is certain to be the same tomorrow."""
    drop_privileges: Flag = True
    """Take the right to run privileged pods away from namespace cozy-storage-bootstrap once every pool is there."""
