"""The guardrail for disks and the Jobs that write to them, with values that are known and values that are not."""

from typing import Any

import pytest
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE

from cozystack_iac.storage import zfs
from tests.guardrails import judged

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
