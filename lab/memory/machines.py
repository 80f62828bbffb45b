"""Machines as they are when the first part of an install is over: configured, etcd with all its members, kubelets up."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from lab.machines.config import decode
from lab.plugins.talos.secrets import Bundle
from lab.world import EtcdPhase, MachineState, Member, Stage, World, stable_number


def configure(world: World, configurations: Mapping[str, str], bundle: Bundle) -> None:
    """Every machine runs its configuration, by name. Before `Machines` opens their ports."""
    cluster = world.cluster
    cluster.bootstrapped = True
    pem = [base64.b64decode(text).decode() for text in (bundle.kubernetes.cert, bundle.kubernetes.key)]
    cluster.ca_crt, cluster.ca_key = pem
    for machine in world.machines.values():
        _configure(machine, configurations[machine.name])
        if machine.role == "controlplane":
            number = stable_number(machine.name, "etcd")
            cluster.members[machine.name] = Member(number, machine.name, machine.hostname, machine.own_address)
            cluster.leader = cluster.leader or machine.name


def _configure(machine: MachineState, text: str) -> None:
    machine.config = decode(text, machine.minor)
    machine.stage, machine.installed, machine.services_up = Stage.RUNNING, True, True
    if machine.role == "controlplane":
        machine.etcd, machine.etcd_data = EtcdPhase.RUNNING, True
    (machine.system_disk or next(iter(machine.disks.values()))).system = True
