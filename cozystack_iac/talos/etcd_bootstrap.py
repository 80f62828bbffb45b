"""Creating the cluster's etcd exactly once, and waiting until every control plane is a voting member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cozystack_iac.talos.errors import AlreadyDone, NotAuthorized, Rejected, TalosError
from cozystack_iac.talos.fleet import Fleet, MachineRef
from cozystack_iac.talos.gate import Gate, all_members
from cozystack_iac.talos.machine import Member
from cozystack_iac.waiting import Progress, StageFailed, budget, format_seconds, pause

LOOK_EVERY_S = 0.5  # the member list cannot be watched


def owner(member: Member, machines: Iterable[MachineRef]) -> MachineRef | None:
    """The machine of the inventory that this member is: by the addresses it advertises, never by its name alone."""
    return next((m for m in machines if m.addresses & member.addresses), None)


def strangers(members: Iterable[Member], machines: Sequence[MachineRef]) -> tuple[Member, ...]:
    """Members that are no machine of the inventory."""
    return tuple(member for member in members if owner(member, machines) is None)


class Bootstrap:
    """The control planes of one cluster on their way to a quorum.

    `recorded` are the members (hexadecimal ids by machine) that this stack has seen before. They are no strangers when their
    machines have left the inventory; and where there are any, etcd exists and is never created again.
    """

    def __init__(
        self, fleet: Fleet, *, deadline_s: float, progress: Progress, recorded: Mapping[str, str] | None = None
    ) -> None:
        self._fleet = fleet
        self._recorded = dict(recorded or {})
        self._deadline_s = deadline_s
        self._progress = progress
        self._gate = Gate(fleet, progress)
        self._last = "nothing yet"
        self._sent = False

    async def run(self) -> dict[str, str]:
        """Until every control plane votes; member ids (hexadecimal) by machine. Raises StageFailed."""
        async with budget(self._deadline_s, self._expired):
            while True:
                views = await self._gate.views()
                members = all_members(views)
                if members:
                    self._refuse_strangers(members)
                    if (ids := self._complete(members)) is not None:
                        return ids
                    self._say(self._joining(members))
                elif unknown := [v for v in views if not v.dormant]:
                    # etcd may live on a machine that does not say: a second bootstrap would split the cluster.
                    self._say("; ".join(f"{v.machine.name}: {v.trouble or 'etcd is starting'}" for v in unknown))
                elif self._recorded:
                    self._say(f"the etcd of {', '.join(self._recorded)} is not running")
                else:
                    await self._bootstrap()
                await pause(LOOK_EVERY_S)

    async def members(self) -> dict[str, str]:
        """Member ids by machine as they are now; raises TalosError when no control plane says."""
        views = await self._gate.views()
        members = all_members(views)
        if not members:
            trouble = next((v.trouble for v in views if v.trouble), "etcd is not running")
            raise TalosError(views[0].machine.address if views else "", trouble)
        return self._ids(members)

    async def _bootstrap(self) -> None:
        """One attempt, on the first control plane. What is not final is tried again by the caller."""
        first = self._fleet.control_planes[0]
        try:
            await self._fleet.ask(first, lambda client: client.bootstrap(deadline_s=30))
            self._say(f"etcd has been bootstrapped on {first.name}")
            self._sent = True
        except AlreadyDone:
            self._say(f"etcd was already bootstrapped on {first.name}; waiting for it to start")
        except (NotAuthorized, Rejected) as error:
            raise self._failed(
                f"{first.name} rejects the bootstrap: {error.text}",
                "correct the configuration, then run `pulumi up` again",
            ) from None
        except TalosError as error:
            # Not final, whatever it is: services still start, the clock is not in sync, the machine reboots. Unsupported
            # too: a machine that still serves maintenance mode answers so.
            self._say(f"{first.name}: {error.text}")

    def _refuse_strangers(self, members: Sequence[Member]) -> None:
        recorded = set(self._recorded.values())
        unknown = [one for one in strangers(members, self._fleet.control_planes) if _hexadecimal(one) not in recorded]
        if not unknown:
            return
        known = ", ".join(f"{m.name} {m.internal}" for m in self._fleet.control_planes)
        by_name = {m.name for m in self._fleet.control_planes}
        ours = [m for m in unknown if m.hostname in by_name]
        hint = (
            "a control plane node advertises an address that is not in the inventory, often the VIP: "
            "restrict etcd's advertised subnets, or correct internalAddress"
            if ours
            else (
                "if the member belongs to a machine that no longer exists, remove it; otherwise this is another cluster"
            )
        )
        raise StageFailed(
            "etcd has members that are not control plane nodes of this stack.",
            details={"members": "; ".join(str(m) for m in unknown), "inventory": known},
            means="this etcd does not belong to this stack alone; nothing was changed",
            next_step=hint,
        )

    def _complete(self, members: Sequence[Member]) -> dict[str, str] | None:
        voting = {m.name for m in self._fleet.control_planes for one in members if one.votes and owner(one, [m])}
        return self._ids(members) if len(voting) == len(self._fleet.control_planes) else None

    def _ids(self, members: Sequence[Member]) -> dict[str, str]:
        owned = ((owner(member, self._fleet.control_planes), member) for member in members)
        ids = {machine.name: _hexadecimal(member) for machine, member in owned if machine is not None}
        present = {_hexadecimal(member) for member in members}
        return {**{name: id_ for name, id_ in self._recorded.items() if id_ in present}, **ids}

    def _joining(self, members: Sequence[Member]) -> str:
        machines = self._fleet.control_planes
        voting = sum(member.votes for member in members)
        present = {machine.name for one in members if (machine := owner(one, machines)) is not None}
        open_ = [m.name for m in machines if m.name not in present] + [str(m) for m in members if not m.votes]
        return f"{voting} of {len(machines)} etcd members can vote; waiting for {', '.join(open_)}"

    def _say(self, text: str) -> None:
        self._last = text
        self._progress.say(text)

    def _expired(self) -> StageFailed:
        return self._failed(
            f"etcd is not complete (timed out after {format_seconds(self._deadline_s)}).",
            "check the console of the machine named above (time sync, boot errors), then run `pulumi up` again",
        )

    def _failed(self, what: str, next_step: str) -> StageFailed:
        return StageFailed(
            what,
            details={"last seen": self._last},
            means="the machines are configured" + ("; etcd was bootstrapped in this run" if self._sent else ""),
            next_step=next_step,
        )


def _hexadecimal(member: Member) -> str:
    return f"{member.id:016x}"
