"""Simulated machines of a test, with the secrets of the cluster they will belong to, and ways to speak to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from grpclib import GRPCError, Status
from grpclib.client import Channel
from grpclib.encoding.proto import ProtoCodec

from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.machine import Applied
from lab.scenario import Scenario
from lab.world import World
from tests.addresses import prefix
from tests.machine_configs import Secrets

NET = prefix()
DISKS = [{"dev": "sda", "size": "64GiB", "serial": "SYS"}, {"dev": "sdb", "size": "200GiB", "serial": "DATA"}]


def scenario(*names: str, talos: str = "v1.13.6", **changes: Any) -> Scenario:
    machine = {"talos": talos, "disks": DISKS, **changes.pop("machine", {})}
    named = [{"name": name, "address": f"{NET}.0.{11 + n}", **machine} for n, name in enumerate(names or ("cp1",))]
    body = {"name": "test", "scale": 1000, "machines": named, "platform": {"ingress": f"{NET}.1.1"}}
    return Scenario.model_validate(body | changes)


@dataclass
class Lab:
    """Running machines with the secrets of the cluster they will belong to."""

    world: World
    secrets: Secrets

    def address(self, name: str = "cp1") -> str:
        return self.world.machines[name].address

    def bare(self, name: str = "cp1") -> Machine:
        return Machine(self.address(name))

    def ours(self, name: str = "cp1", role: str = "os:admin", secrets: Secrets | None = None) -> Machine:
        issued = (secrets or self.secrets).client(role)
        return Machine(self.address(name), identity=Identity(self.secrets.os.crt, issued.crt, issued.key))

    async def apply(self, name: str = "cp1", role: str = "controlplane", **changes: Any) -> Applied:
        async with self.bare(name) as machine:
            return await machine.apply(self.secrets.config(role, hostname=name, **changes))

    async def configured(self, *names: str, role: str = "controlplane", **changes: Any) -> None:
        for name in names or ("cp1",):
            await self.apply(name, role, **changes)
        for name in names or ("cp1",):
            await self.until(name, "booting")
            await self.world_says(lambda name=name: self.world.machines[name].services_up)  # type: ignore[misc]
            await self.world_says(lambda name=name: self.world.machines[name].time_synced)  # type: ignore[misc]

    async def world_says(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.005)

    async def until(self, name: str, what: str) -> None:
        await self.world.log.happened(f"machine {name}", what, timeout_s=10)

    def events(self, subject: str) -> list[str]:
        return [event.what for event in self.world.log.find(subject)]


Start = Callable[[Scenario], Coroutine[Any, Any, Lab]]


def insecure(alpn: list[str] | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = newest
    if alpn is not None:
        context.set_alpn_protocols(alpn)
    return context


def raw(lab: Lab, identity: Identity | None = None, name: str = "cp1") -> Channel:
    context = identity.context if identity is not None else insecure(["h2"])
    return Channel(lab.address(name), 50000, ssl=context, codec=ProtoCodec())


def admin(lab: Lab, role: str = "os:admin") -> Identity:
    issued = lab.secrets.client(role)
    return Identity(lab.secrets.os.crt, issued.crt, issued.key)


async def refused(call: Any) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""
