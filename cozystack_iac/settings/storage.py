"""ZFS pools, LINSTOR pools and storage classes."""

from typing import Literal

from pydantic import Field

from cozystack_iac.settings.base import Count, Model, Size
from cozystack_iac.settings.nodes import Layout

GIB = 1024**3


class Storage(Model):
    """Cozystack standardises on ZFS below LINSTOR; there is no other provider."""

    provider: Literal["zfs"] = "zfs"
    """The only one there is."""
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
    """Copies of replicated volumes. Default: 3, or the number of storage nodes if smaller."""
    approved_disks: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By node: identities of the disks a person has approved for writing. Nothing else is ever written."""
    job_image: str | None = None
    """Image of the job, e.g. from a mirror. Default: the project's pinned one."""
