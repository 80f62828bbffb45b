"""A stack file with 25 different mistakes reports all 25 in one run."""

from pathlib import Path

from cozystack_iac.__main__ import main
from cozystack_iac.rules import verdict
from cozystack_iac.settings.load import from_file

STACK_FILE = Path(__file__).parent / "data" / "Pulumi.twenty-five-mistakes.yaml"

EXPECTED = {
    ("CFG-002", "cozystack:cluster.varient"),
    ("VER-001", "cozystack:cluster.cozystack"),
    ("INV-008", "cozystack:cluster.name"),
    ("END-003", "cozystack:cluster.domain"),
    ("INV-001", "cozystack:nodes[0].name"),
    ("STO-002", "cozystack:nodes[0].installDisk.byId"),
    ("INV-005", "cozystack:nodes[1].address"),
    ("STO-005", "cozystack:nodes[2].installDisk.serial"),
    ("CFG-003", "cozystack:nodes[1].role"),
    ("STO-003", "cozystack:nodes[1].dataDisks[0].byId"),
    ("CFG-004", "cozystack:nodes[2]"),
    ("NET-028", "cozystack:nodes[2].vips"),
    ("STO-006", "cozystack:nodes[2].dataDisks"),
    ("NET-022", "cozystack:talos.vip"),
    ("TAL-001", "cozystack:talos.image"),
    ("SAN-001", "cozystack:talos.extraSans[0]"),
    ("TAL-004", "cozystack:talos.kernelModules[0]"),
    ("NET-001", "cozystack:network.podCIDR"),
    ("NET-002", "cozystack:network.joinCIDR"),
    ("REG-004", "cozystack:network.proxy.https"),
    ("STO-010", "cozystack:storage.zpool"),
    ("PLT-001", "cozystack:platform.variant"),
    ("PUB-001", "cozystack:publishing.host"),
    ("PUB-006", "cozystack:publishing.exposed[1]"),
    ("CRT-001", "cozystack:publishing.certificates.solver"),
}


def test_all_twenty_five_are_reported_at_once() -> None:
    found = {(finding.code, finding.path) for finding in verdict(from_file(STACK_FILE))}
    assert len(EXPECTED) == 25
    assert found >= EXPECTED


def test_and_hardly_anything_else_is() -> None:
    """Follow-ups would bury the mistakes. These two are real: the approvals are missing, and mistake 8 is two at once."""
    found = {(finding.code, finding.path) for finding in verdict(from_file(STACK_FILE)) if finding.severity != "note"}
    assert found - EXPECTED == {("STO-008", "cozystack:storage"), ("INV-003", "cozystack:nodes[1].address")}


def test_the_exit_code_says_so() -> None:
    assert main(["check", str(STACK_FILE)]) == 1
