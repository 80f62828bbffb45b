"""ZFS pools on the nodes' data disks, LINSTOR pools on them, storage classes on those."""
