"""The life of one simulated machine: power, maintenance, installation, reboots, and the services of a running node.

Calls change the machine through the methods here; everything that takes time happens in the machine's own task, one
order after the other, as its real-life delays say.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from lab.machines import etcd, pki, wiping
from lab.machines.config import AppliedConfig, image_tag
from lab.machines.dispatch import Calls
from lab.machines.selector import NoSuchDisk, pick
from lab.machines.server import Door
from lab.machines.store import Store
from lab.scenario import TUNED_EXTENSIONS
from lab.world import EtcdPhase, MachineState, Stage, World

REPLY_LEAVES_S = 0.02  # wall time a reply gets to leave before the port closes, whatever the scale
ISSUER_POLL_S = 5.0  # real-life seconds between two tries of a worker to get its certificate from trustd
Step = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Node:
    """A machine with its port. `peers` finds the others, for calls that are forwarded."""

    world: World
    state: MachineState
    maintenance_ca: pki.Issued
    port: int
    peers: dict[str, Node]
    answers: dict[str, Any]
    rebooting: bool = False
    writing: bool = False  # an installer runs
    apply_lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    door: Door = field(init=False)
    calls: Calls = field(init=False)
    store: Store = field(init=False)
    _orders: asyncio.Queue[Step] = field(init=False, default_factory=asyncio.Queue)
    _context: ssl.SSLContext | None = field(init=False, default=None)
    _timers: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    _step: asyncio.Task[None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.door = Door(self.state.address, self.port)
        self.calls = Calls(self, self.answers)
        self.store = Store(self.world, self.state)

    @property
    def in_maintenance(self) -> bool:
        return self.state.door == "maintenance"

    @property
    def _behind(self) -> timedelta:
        return timedelta(seconds=self.state.spec.clock_behind)

    def is_named(self, name: str) -> bool:
        """Whether `node` metadata with this value means this machine."""
        return name in (self.state.address, self.state.hostname, self.state.name, "127.0.0.1", "localhost")

    def named(self, name: str) -> Node | None:
        """The running machine called so, this one or another of the same cluster."""
        if self.is_named(name):
            return self
        found = next((peer for peer in self.peers.values() if peer.is_named(name)), None)
        return found if found is not None and found.state.door == "secure" else None

    def say(self, what: str, **data: Any) -> None:
        self.world.log.record(self.state.subject, what, **data)

    def order(self, step: Step) -> None:
        """Do this when everything ordered before is done."""
        self._orders.put_nowait(step)

    def interrupt(self, step: Step) -> None:
        """Do this now: whatever the machine was doing or was about to do is lost, as when the power fails."""
        while not self._orders.empty():
            self._orders.get_nowait()
        self.order(step)
        if self._step is not None:
            self._step.cancel()

    # ---- power and boot -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the port as the scenario describes the machine; one that has its configuration already goes on with it."""
        stage = self.state.spec.stage
        if self.state.config is not None:
            await self._open_secure(self.state.config)
        elif stage == "off":
            self.state.powered = False
        elif stage == "silent":
            await self.door.stay_silent()
        elif stage == "not-talos":
            other = pki.api_certificate(pki.new_ca("example"), "localhost", [self.state.address])
            await self.door.speak_something_else(pki.maintenance_context(other))
        elif stage == "foreign":
            await self._open_foreign()
        else:
            await self._open_maintenance()

    async def run(self) -> None:
        """Carry out orders until cancelled."""
        while True:
            step = await self._orders.get()
            self._step = asyncio.create_task(step())
            try:
                await asyncio.wait({self._step})
                if not self._step.cancelled():
                    self._step.result()  # a mistake in the simulator must not pass for a slow machine
            finally:
                self._step.cancel()
            self.state.touch()

    async def stop(self) -> None:
        self._forget_timers()
        await self.door.close()

    async def power(self, wanted: str) -> None:
        """Cut or give power: `on`, `off` or `cycle`. No goodbye to anybody."""
        if wanted in ("off", "cycle"):
            await self._go_dark()
            self.state.powered = False
            self.say("off")
        if wanted in ("on", "cycle") and not self.state.powered:
            self.state.powered = True
            await self.boot()

    async def powered_again(self, after: float) -> None:
        """The power comes back after so many real-life seconds."""
        await self.world.clock.sleep(after)
        await self.power("on")

    async def replace(self, by: str) -> None:
        """Another life in the same place: a fresh machine in maintenance, or one of somebody else's cluster."""
        await self._go_dark()
        wiping.forget_config(self, keep_installed=by == "foreign")
        await (self._open_foreign() if by == "foreign" else self._open_maintenance())

    async def _open_foreign(self) -> None:
        ca = pki.new_ca("talos")
        certificate = pki.api_certificate(ca, f"other-{self.state.name}", [self.state.address], self._behind)
        self.state.stage, self.state.door, self.state.installed = Stage.RUNNING, "secure", True
        context = pki.secure_context(certificate, [ca.crt])
        await self.door.serve(lambda: context, self.calls)

    async def _open_maintenance(self) -> None:
        self.state.stage, self.state.door = Stage.MAINTENANCE, "maintenance"
        self.door.host = self.state.lives_at
        sans = [self.state.hostname, self.state.own_address, "127.0.0.1", "::1"]

        @cache  # made when first needed: of a thousand machines few are ever asked
        def context() -> ssl.SSLContext:
            return pki.maintenance_context(pki.maintenance_certificate(self.maintenance_ca, sans, self._behind))

        await self.door.serve(context, self.calls)
        self.say("maintenance")

    async def _open_secure(self, config: AppliedConfig) -> None:
        """apid with a certificate of the config's CA. A worker has only that CA's certificate: trustd signs for it."""
        issuer = self._issuer(config)
        if issuer is None:
            self.say("no certificate", reason="no control plane has the key of machine.ca yet")
            self._later(self._wait_for_issuer(config))
            return
        certificate = pki.api_certificate(issuer, self.state.hostname, self._sans(config), self._behind)
        context = self._context = pki.secure_context(certificate, config.accepted_os_cas)
        self.state.door = "secure"
        self.door.host = self.state.lives_at
        await self.door.serve(lambda: context, self.calls)

    async def _wait_for_issuer(self, config: AppliedConfig) -> None:
        while self._issuer(config) is None:
            await self.world.clock.sleep(ISSUER_POLL_S)
        await self._open_secure(config)

    def _issuer(self, config: AppliedConfig) -> pki.Issued | None:
        holders = [config, *(peer.state.config for peer in self.peers.values() if peer.state.config is not None)]
        keys = (c.os_ca.key for c in holders if c.os_ca.crt == config.os_ca.crt and c.os_ca.key)
        key = next(keys, None)
        return pki.Issued(config.os_ca.crt, key) if key is not None else None

    def _sans(self, config: AppliedConfig) -> list[str]:
        return [*config.cert_sans, self.state.own_address, "127.0.0.1", self.state.hostname]

    async def _go_dark(self) -> None:
        """The port closes, services end, timers of the old life are forgotten."""
        self._forget_timers()
        self.state.door = None
        self.state.services_up = self.state.node_ready = False
        if self.state.etcd in (EtcdPhase.STARTING, EtcdPhase.LEARNER, EtcdPhase.RUNNING):
            self.state.etcd = EtcdPhase.PREPARING
        etcd.hand_over(self)
        await self.door.close()
        self.state.touch()

    async def boot(self) -> None:
        self.state.stage = Stage.BOOTING
        await self.world.clock.sleep(self.world.scenario.delays.boot)
        await self._come_up()

    async def _come_up(self) -> None:
        state, self.rebooting = self.state, False
        if not state.installed:  # a config that no disk keeps is gone with the power
            wiping.forget_config(self, keep_installed=False)
        if state.next_talos is not None:
            state.talos, state.next_talos, state.extensions = state.next_talos, None, state.next_extensions
        if state.staged is not None:
            state.config, state.staged = state.staged, None
        if state.config is None or state.config.main is None:
            await self._open_maintenance()
            return
        state.stage, state.time_synced = Stage.BOOTING, False
        state.etcd = EtcdPhase.PREPARING if state.role == "controlplane" else EtcdPhase.ABSENT
        await self._open_secure(state.config)
        self.say("booting", role=state.role, talos=state.talos)
        self._later(self._start_services())
        self._later(self._sync_time())

    async def _start_services(self) -> None:
        await self.world.clock.sleep(self.world.scenario.delays.services_up)
        state = self.state
        if state.config is not None and state.config.bad_file is not None:
            self.say("boot failed", path=state.config.bad_file, reason="create operation not allowed outside of /var")
            return
        state.services_up = True
        if state.role == "worker":
            self.running()
        elif state.etcd_data:
            await etcd.restart(self)
        state.touch()

    async def _sync_time(self) -> None:
        if self.state.ntp:
            await self.world.clock.sleep(self.world.scenario.delays.time_sync)
            self.state.time_synced = True
            self.state.touch()

    def running(self) -> None:
        self.state.stage = Stage.RUNNING
        self.say("running", role=self.state.role)
        self.state.touch()

    # ---- configuration --------------------------------------------------------------------------------------------

    def stage_first(self, config: AppliedConfig) -> None:
        """Mode STAGED in maintenance: nothing happens before the next boot."""
        self.state.staged = config
        self.say("config applied", role=config.role, digest=config.digest[:12], mode="STAGED")

    def accept_first(self, config: AppliedConfig) -> None:
        """A config arrived in maintenance: install or activate it."""
        self.state.config = config
        self.say("config applied", role=config.role, digest=config.digest[:12], mode="maintenance")
        if config.main is None:
            self.state.config = None  # documents alone do not make a node: it stays in maintenance
            return
        self.rebooting = True
        self.order(self._activate if self.state.installed else self._install)

    def accept(self, config: AppliedConfig, mode: str) -> None:
        """A running machine takes over a changed config; `mode` is what it does about it."""
        self.say("config applied", role=config.role, digest=config.digest[:12], mode=mode)
        if mode == "STAGED":
            self.state.staged = config
            return
        before, self.state.config = self.state.config, config
        if mode == "REBOOT":
            self.reboot()
        else:
            self._renew_certificate(before, config)
        self.state.touch()

    def try_for(self, config: AppliedConfig, seconds: float) -> None:
        """Mode TRY: back to the former config after so many real-life seconds."""
        before = self.state.config
        self.accept(config, "TRY")

        async def revert() -> None:
            await self.world.clock.sleep(seconds)
            self.state.config = before
            self.say("config reverted")
            self.state.touch()

        self._later(revert())

    def _renew_certificate(self, before: AppliedConfig | None, config: AppliedConfig) -> None:
        """New connections see the new SANs; a changed CA closes the door to the old one."""
        issuer = self._issuer(config)
        trust = None if before is None else (before.accepted_os_cas, before.os_ca)
        if trust != (config.accepted_os_cas, config.os_ca) or issuer is None or self._context is None:
            self.order(lambda: self._open_secure(config))
        else:
            certificate = pki.api_certificate(issuer, self.state.hostname, self._sans(config), self._behind)
            pki.renew(self._context, certificate)

    async def _activate(self) -> None:
        await self._leave_maintenance()
        await self.world.clock.sleep(self.world.scenario.delays.activate)
        await self._come_up()

    async def _leave_maintenance(self) -> None:
        await asyncio.sleep(REPLY_LEAVES_S)
        await self._go_dark()

    async def _install(self) -> None:
        """Write the image, then reboot into it. From v1.13 on the API answers meanwhile, with the config's CA."""
        state, delays, config = self.state, self.world.scenario.delays, self.state.config
        if config is None:
            return
        await self._leave_maintenance()
        state.stage = Stage.INSTALLING
        if state.minor >= 13:
            await self._open_secure(config)
        self.say("installing", image=config.install_image)
        await self.world.clock.sleep(delays.install)
        try:
            disk = pick(config, [d.spec for d in state.disks.values()])
            if not image_tag(config.install_image).startswith("v1."):
                raise NoSuchDisk(f'image "{config.install_image}" cannot be pulled')
        except NoSuchDisk as error:
            self.say("install failed", reason=str(error))
        else:
            self._written_to(disk.dev, config.install_image)
            self.say("installed", dev=disk.dev, serial=disk.serial, image=config.install_image)
        await self._reboot()  # a failed installation ends in maintenance again: nothing was kept

    def _written_to(self, dev: str, image: str) -> None:
        for disk in self.state.disks.values():
            disk.system = disk.dev == dev
        system = self.state.disks[dev]
        self.state.lose_from_pool(system)
        system.residue = system.pool = None
        self.state.installed = True
        self.run_image(image)

    def run_image(self, image: str) -> None:
        """From the next boot on the machine runs this installer's Talos, with the extensions that image has."""
        self.state.next_talos = image_tag(image)
        # The plain installer has no extensions: drbd and zfs are gone. What the machine was found with does not count.
        self.state.next_extensions = () if "siderolabs/installer" in image else TUNED_EXTENSIONS

    # ---- reboot, shutdown, upgrade -------------------------------------------------------------------------

    def reboot(self) -> None:
        self.rebooting = True
        self.order(self._reboot)

    async def _reboot(self) -> None:
        self.state.stage = Stage.REBOOTING
        self.say("rebooting")
        await self.shut_down()
        await self.boot()

    async def shut_down(self) -> None:
        self.state.touch()
        await asyncio.sleep(max(self.world.clock.wall(self.world.scenario.delays.shut_down), REPLY_LEAVES_S))
        await self._go_dark()

    def shutdown(self) -> None:
        async def step() -> None:
            self.state.stage = Stage.SHUTTING_DOWN
            self.say("shutting down")
            await self.shut_down()
            self.state.powered = False

        self.order(step)

    def upgrade(self, image: str, *, stage: bool) -> None:
        """The legacy call: installs at once, or with `stage` at the next boot, and reboots."""

        async def step() -> None:
            self.state.stage = Stage.UPGRADING
            self.say("upgrading", image=image)
            self.state.touch()
            if not stage:
                await self.world.clock.sleep(self.world.scenario.delays.upgrade)
            self.run_image(image)
            await self._reboot()

        self.order(step)

    # ---- timers ---------------------------------------------------------------------------------------------------

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        timer = asyncio.create_task(work)
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    def _forget_timers(self) -> None:
        for timer in tuple(self._timers):
            timer.cancel()
