"""The stack file that fits a scenario, and the checked-in one fitted to other addresses.

Nearly everything follows from the machines; what a scenario wants otherwise stands in its `stack:`, spelled like a stack file
without the `cozystack:` prefix. There `nodes` maps machine names to changes. A value of `null` takes a key away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cozystack_iac import go_yaml, releases
from lab.scenario import MachineSpec, Scenario

_CHECKOUT = Path(__file__).resolve().parents[1]
CHART = str(Path(__file__).parent / "charts" / "cozy-installer")


def stack_file(scenario: Scenario) -> dict[str, Any]:
    """The whole configuration, as below `config:`. A machine is a control plane when its name begins with `cp`."""
    made = _changed(_derived(scenario), {key: value for key, value in scenario.stack.items() if key != "nodes"})
    changes: Mapping[str, Any] = scenario.stack.get("nodes", {})
    unknown = set(changes) - {machine.name for machine in scenario.machines}
    if unknown:
        raise ValueError(f"stack.nodes names machines that do not exist: {', '.join(sorted(unknown))}")
    made["nodes"] = [_changed(_node(machine), changes.get(machine.name, {})) for machine in scenario.machines]
    return {f"cozystack:{key}": value for key, value in made.items()}


def checked_in(prefix: str, machines: set[str]) -> dict[str, Any]:
    """The configuration of `Pulumi.lab.yaml`, moved to the loopback /16 `prefix` and reduced to `machines`."""
    text = re.sub(r"127\.10\.", f"{prefix}.", (_CHECKOUT / "Pulumi.lab.yaml").read_text(encoding="utf-8"))
    config: dict[str, Any] = go_yaml.load(text)["config"]
    config["cozystack:nodes"] = [node for node in config["cozystack:nodes"] if node["name"] in machines]
    approved = config.get("cozystack:storage", {}).get("approvedDisks")
    if approved:
        config["cozystack:storage"]["approvedDisks"] = {n: d for n, d in approved.items() if n in machines}
    chart = config.get("cozystack:platform", {}).get("chart", "")
    if chart and "://" not in chart:
        config["cozystack:platform"]["chart"] = str(_CHECKOUT / chart)
    return config


def _derived(scenario: Scenario) -> dict[str, Any]:
    net = ".".join(str(scenario.machines[0].inside or scenario.machines[0].address).split(".")[:3])
    talos: dict[str, Any] = {"vip": str(scenario.vip)} if scenario.vip is not None else {}
    release = releases.find(scenario.cozystack)
    [version, *others] = dict.fromkeys(machine.talos for machine in scenario.machines)
    if not others and (release is None or version != release.talos):
        talos["version"] = version
    own, *asked = [f"{resolver.address}:{resolver.port}" for resolver in scenario.platform.resolvers] or [""]
    return {
        "lab": {"httpsPort": scenario.platform.https_port} | ({"resolver": own} if own else {}),
        "cluster": {"name": "lab", "cozystack": scenario.cozystack},
        "nodes": [],
        "talos": talos,
        "network": {"nodeCIDR": f"{net}.0/24"},
        "storage": {"approvedDisks": _approved(scenario)},
        "platform": {"chart": CHART},
        "publishing": {
            "host": "lab.example.org",
            "hostOwned": True,
            "externalIPs": {"strategy": "explicit", "addresses": [str(scenario.platform.ingress)]},
            **({"resolvers": asked} if asked else {}),
        },
        "access": {"oidc": scenario.platform.oidc},
        "checks": "live",
        "waits": {"settle": "2s"},
    }


def _node(machine: MachineSpec) -> dict[str, Any]:
    """The first disk is Talos', the second one is for data; where a machine has but one, it stores nothing."""
    system, *data = machine.disks
    node: dict[str, Any] = {
        "name": machine.name,
        "role": "controlPlane" if machine.name.startswith("cp") else "worker",
        "address": str(machine.address),
        "link": machine.links[0].name if machine.links else "eth0",
        "installDisk": {"serial": system.serial},
    }
    if data:
        node["dataDisks"] = [{"serial": data[0].serial}]
    if machine.lease is not None:
        node["maintenanceAddress"] = str(machine.lease)
        node["addresses"] = [f"{machine.address}/24"]
    if machine.inside is not None:
        node["internalAddress"] = str(machine.inside)
        node["publicAddress"] = str(machine.address)
    return node


def _approved(scenario: Scenario) -> dict[str, list[str]]:
    return {machine.name: [machine.disks[1].serial] for machine in scenario.machines if len(machine.disks) > 1}


def _changed(value: Any, change: Any) -> Any:
    if not isinstance(change, Mapping) or not isinstance(value, Mapping):
        return change
    merged = {key: _changed(value.get(key), item) for key, item in change.items() if item is not None}
    return {key: item for key, item in {**value, **merged}.items() if key not in change or change[key] is not None}
