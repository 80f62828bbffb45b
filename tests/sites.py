"""Stack files for tests of settings and rules: a good one, and ways to spoil it."""

import copy
from collections.abc import Iterable
from datetime import date
from typing import Any

from cozystack_iac.findings import Finding, Verdict
from cozystack_iac.rules import verdict
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import Loaded
from cozystack_iac.settings.reading import read

TODAY = date(2026, 11, 30)

GONE = object()
"""As a value: the key is removed."""


def node(number: int, role: str = "controlPlane", **more: Any) -> dict[str, Any]:
    """A bare machine with one data disk; numbers up to 200."""
    name = f"cp{number}" if role == "controlPlane" else f"w{number}"
    return {
        "name": name,
        "role": role,
        "address": f"10.0.0.{number + 10}",
        "link": "ens5",
        "installDisk": {"serial": f"SYS{number:04}"},
        "dataDisks": [{"serial": f"DATA{number:04}"}],
        **more,
    }


def good() -> dict[str, Any]:
    """Three control planes on bare metal, with nothing to object to."""
    return {
        "cluster": {"name": "prod", "cozystack": "1.6.2"},
        "nodes": [node(1), node(2), node(3)],
        "talos": {"vip": "10.0.0.10"},
        "network": {"nodeCIDR": "10.0.0.0/24"},
        "storage": {"approvedDisks": {f"cp{number}": [f"DATA{number:04}"] for number in (1, 2, 3)}},
        "publishing": {"host": "cluster.example.org", "hostOwned": True, "certificates": {"issuer": "in-house"}},
    }


def existing() -> dict[str, Any]:
    """A k3s cluster on three hosts."""
    raw = good()
    raw["cluster"] |= {
        "variant": "generic",
        "access": {"kubeconfig": "~/.kube/k3s", "context": "k3s", "identity": "0-1"},
    }
    raw["network"] |= {"podCIDR": "10.42.0.0/16", "serviceCIDR": "10.43.0.0/16"}
    del raw["talos"]
    return raw


def changed(raw: dict[str, Any], *changes: tuple[str, Any]) -> dict[str, Any]:
    """A copy of `raw` with values set at dotted paths, e.g. `nodes.0.address`; missing mappings are made."""
    result = copy.deepcopy(raw)
    for path, value in changes:
        *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        place: Any = result
        for step in parents:
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        if value is GONE:
            del place[last]
        else:
            place[last] = value
    return result


def judged(raw: dict[str, Any]) -> Verdict:
    """The verdict over a whole stack file given as plain data (keys without their prefix)."""
    site, findings = read(raw)
    return verdict(Loaded(site, tuple(findings), today=TODAY))


def site_of(raw: dict[str, Any]) -> Site:
    """The site in data that has the right form."""
    site, findings = read(raw)
    assert site is not None
    assert findings == []
    return site


def found(raw: dict[str, Any], code: str) -> Finding:
    """The one finding of that code; fails loudly with all findings when there is none or more than one."""
    matching = [finding for finding in judged(raw) if finding.code == code]
    assert len(matching) == 1, f"{code} found {len(matching)} times in {codes(judged(raw))}"
    return matching[0]


def codes(findings: Iterable[Finding]) -> list[str]:
    """Codes of everything worse than a note, each once, sorted."""
    return sorted({finding.code for finding in findings if finding.severity != "note"})
