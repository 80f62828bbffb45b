"""Who is upgraded, and in which order. (What happens to machines meanwhile: tests/stories/test_talos_upgrade.py.)"""

from __future__ import annotations

import pytest

from cozystack_iac.membership.upgrade import Running, obstacle, ordered, reason
from cozystack_iac.talos.machine import Extension
from cozystack_iac.talos.verification import WantedMachine, lacking
from tests.talos_site import machine_ref

PIN = WantedMachine(
    talos="v1.13.6", image="ghcr.io/cozystack/cozystack/talos:v1.13.6", extensions=("drbd", "zfs"), modules=()
)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (Running("v1.13.6"), None),
        (Running("v1.12.7"), "runs v1.12.7 instead of v1.13.6"),
        (Running("v1.13.9"), "runs v1.13.9 instead of v1.13.6"),
        (Running("v1.13.6", ("zfs",)), "does not have the extension zfs"),
        (Running("v1.13.6", ("drbd", "zfs")), "does not have the extension drbd, zfs"),
    ],
)
def test_a_machine_is_upgraded_for_a_reason(there: Running, says: str | None) -> None:
    assert reason(there, PIN) == says
    assert reason(there, PIN.model_copy(update={"image": "ghcr.io/siderolabs/installer:v1.13.6"})) is None


@pytest.mark.parametrize(
    ("here", "there", "possible"),
    [
        ("v1.12.7", "v1.13.6", True),
        ("v1.13.0", "v1.13.6", True),
        ("v1.13.9", "v1.13.6", True),
        ("v1.14.0-rc.1", "v1.14.0", True),
        ("v1.11.6", "v1.13.6", False),
        ("v1.14.0", "v1.13.6", False),
        ("", "v1.13.6", False),
    ],
)
def test_talos_goes_forward_one_minor_at_a_time(here: str, there: str, possible: bool) -> None:
    assert (obstacle(Running(here), PIN.model_copy(update={"talos": there})) is None) is possible


def test_control_planes_go_first_each_kind_in_the_inventorys_order() -> None:
    machines = [machine_ref(name, "10.0.0.1") for name in ("w1", "cp2", "w2", "cp1")]
    assert [machine.name for machine in ordered(machines)] == ["cp2", "cp1", "w1", "w2"]


def test_the_virtual_extension_of_the_kernel_is_no_extension() -> None:
    assert lacking((Extension("modules.dep"), Extension("zfs")), PIN) == ("drbd",)
