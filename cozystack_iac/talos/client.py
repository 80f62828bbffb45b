"""The Talos machine API in our own words. A `Machine` asks and tells; it does not retry, decide or print."""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from google.protobuf.empty_pb2 import Empty
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from yaml import YAMLError

from cozystack_iac import go_yaml
from cozystack_iac.talos import machine as facts
from cozystack_iac.talos.api import common_pb2, lifecycle_pb2, machine_pb2, state_pb2
from cozystack_iac.talos.api.lifecycle_grpc import ImageServiceStub, LifecycleServiceStub
from cozystack_iac.talos.api.machine_grpc import MachineServiceStub
from cozystack_iac.talos.api.state_grpc import StateStub
from cozystack_iac.talos.errors import Failed, NotThere, TalosError, Unreachable, answered
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.machine import Applied, ApplyMode, Kind
from cozystack_iac.talos.transport import PORT, Connection, Expected, Limits, Peer

T = TypeVar("T")
_UNKNOWN = 2  # gRPC status UNKNOWN

_SYSTEM = common_pb2.ContainerdInstance(namespace=common_pb2.NS_SYSTEM)


class _Message(Protocol):
    @property
    def metadata(self) -> common_pb2.Metadata: ...


M = TypeVar("M", bound=_Message)


class Machine:
    """One Talos machine over its API. Async; every call has a deadline in seconds. Use it as an async context.

    Without `identity` the machine must be in maintenance mode; `fingerprint` then pins its key. With one it must be of
    the identity's cluster. Calls always go to the machine at `address` itself: there is no routing through others.
    All calls raise TalosError and nothing else.
    """

    def __init__(
        self,
        address: str,
        *,
        identity: Identity | None = None,
        fingerprint: str | None = None,
        deadline_s: float = 10.0,
        port: int = PORT,
        limits: Limits | None = None,
    ) -> None:
        self.address = address
        self._deadline_s = deadline_s
        self._connection = Connection(address, port, Expected(identity, fingerprint), limits)
        self._machine = MachineServiceStub(self._connection)
        self._state = StateStub(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up. A later call dials again."""
        self._connection.close()

    async def hangs_up(self, within_s: float) -> bool:
        """Wait for the machine to end this connection, as every reboot does; False when it did not in time."""
        return await self._connection.lost_within(within_s)

    async def peer(self) -> Peer:
        """Dial, and return the machine's certificate."""
        return await self._within(None, self._connection.connect)

    @property
    def met(self) -> Peer | None:
        """The certificate last seen at the address, also when it was not the one we meant to meet."""
        return self._connection.peer

    # What it is -----------------------------------------------------------------------------------------------------

    async def status(self) -> facts.Status:
        """Stage and readiness, with the conditions that are not met."""
        return await self.get(facts.STATUS, "machine")

    async def stage(self) -> facts.Stage:
        """Only the stage."""
        return (await self.status()).stage

    async def version(self) -> str:
        """The running Talos, e.g. `v1.13.6`. Works in every mode of every version, unlike the Version call."""
        return await self.get(facts.VERSION, "version")

    async def configuration(self) -> str:
        """The complete configuration in effect, secrets included. Needs an admin's certificate."""
        return await self.get(facts.MACHINE_CONFIG, "v1alpha1")

    async def hostname(self) -> str:
        return await self.get(facts.HOSTNAME, "hostname")

    async def disks(self) -> tuple[facts.ReportedDisk, ...]:
        """All block devices, virtual ones included."""
        return await self.list(facts.DISKS)

    async def system_disk(self) -> str | None:
        """Kernel name of the disk Talos is installed on; None when it is not installed."""
        try:
            return await self.get(facts.SYSTEM_DISK, "system-disk")
        except NotThere:
            return None

    async def volumes(self) -> tuple[facts.Volume, ...]:
        """What was found on disks and partitions: signatures of file systems, pools, partition tables."""
        return await self.list(facts.VOLUMES)

    async def links(self) -> tuple[facts.Link, ...]:
        return await self.list(facts.LINKS)

    async def addresses(self) -> tuple[facts.Address, ...]:
        return await self.list(facts.ADDRESSES)

    async def node_ips(self) -> tuple[str, ...]:
        """What kubelet registers as the node's addresses. NotThere before it has decided."""
        return await self.get(facts.NODE_IPS, "kubelet")

    async def extensions(self) -> tuple[facts.Extension, ...]:
        return await self.list(facts.EXTENSIONS)

    async def modules(self) -> tuple[facts.Module, ...]:
        """Loaded kernel modules. Unsupported or NotAuthorized before Talos 1.11: read `/proc/modules` there."""
        return await self.list(facts.MODULES)

    async def services(self) -> tuple[facts.Service, ...]:
        """Talos' services. Unsupported in maintenance mode up to 1.12."""
        reply = await self._unary(self._machine.ServiceList, Empty())
        return tuple(_service(one) for one in reply.services)

    # Resources ------------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind[T], id_: str) -> T:
        """One resource. Raises NotThere when it does not exist."""
        request = state_pb2.GetRequest(namespace=kind.namespace, type=kind.type, id=id_, options=state_pb2.GetOptions())
        reply = await self._within(None, lambda: self._state.Get(request, timeout=self._deadline_s))
        return self._parse(kind, reply.resource)

    async def list(self, kind: Kind[T]) -> tuple[T, ...]:
        """All resources of a kind, in the server's order (by id)."""
        request = state_pb2.ListRequest(namespace=kind.namespace, type=kind.type, options=state_pb2.ListOptions())
        replies = await self._within(None, lambda: self._state.List(request, timeout=self._deadline_s))
        return tuple(self._parse(kind, reply.resource) for reply in replies)

    def _parse(self, kind: Kind[T], resource: state_pb2.Resource) -> T:
        try:
            text = resource.spec.yaml_spec
            return kind.parse(resource.metadata.id, text if kind.raw else go_yaml.load(text))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError, YAMLError) as error:
            what = f"{kind.type}/{resource.metadata.id} has an unknown format ({type(error).__name__})"
            raise Failed(self.address, _UNKNOWN, what) from None

    # etcd -----------------------------------------------------------------------------------------------------------

    async def etcd_members(self) -> tuple[facts.Member, ...]:
        """The members as this machine's etcd knows them. Unsupported on workers."""
        reply = await self._unary(self._machine.EtcdMemberList, machine_pb2.EtcdMemberListRequest())
        return tuple(
            facts.Member(m.id, m.hostname, tuple(m.peer_urls), tuple(m.client_urls), m.is_learner)
            for m in reply.members
        )

    async def etcd_status(self) -> facts.EtcdStatus:
        reply = await self._unary(self._machine.EtcdStatus, Empty())
        status = reply.member_status
        return facts.EtcdStatus(
            member_id=status.member_id,
            leader=status.leader,
            learner=status.is_learner,
            version=status.protocol_version,
            errors=tuple(status.errors),
        )

    async def etcd_forfeit_leadership(self) -> str | None:
        """Hand leadership over; the new leader's name, or None when this machine was not the leader."""
        request = machine_pb2.EtcdForfeitLeadershipRequest()
        return (await self._unary(self._machine.EtcdForfeitLeadership, request)).member or None

    async def etcd_leave(self) -> None:
        """This machine leaves the cluster's etcd. The caller has made sure that the rest keeps its quorum."""
        await self._unary(self._machine.EtcdLeaveCluster, machine_pb2.EtcdLeaveClusterRequest(), 60.0)

    async def etcd_remove(self, member_id: int) -> None:
        """Remove a member that cannot leave by itself any more."""
        request = machine_pb2.EtcdRemoveMemberByIDRequest(member_id=member_id)
        await self._unary(self._machine.EtcdRemoveMemberByID, request)

    # Changes --------------------------------------------------------------------------------------------------------

    async def apply(
        self, config: str, mode: ApplyMode = ApplyMode.AUTO, *, dry_run: bool = False, deadline_s: float | None = None
    ) -> Applied:
        """Hand over a complete machine configuration. In maintenance mode (AUTO) the machine installs and reboots."""
        request = machine_pb2.ApplyConfigurationRequest(data=config.encode(), mode=mode.value, dry_run=dry_run)
        reply = await self._unary(self._machine.ApplyConfiguration, request, deadline_s)
        name = machine_pb2.ApplyConfigurationRequest.Mode.Name(reply.mode)
        return Applied(ApplyMode(name), tuple(reply.warnings), reply.mode_details)

    async def bootstrap(self, deadline_s: float | None = None) -> None:
        """Create the etcd cluster on this machine. Raises AlreadyDone, NotYet, Unsupported (a worker)."""
        await self._unary(self._machine.Bootstrap, machine_pb2.BootstrapRequest(), deadline_s)

    async def reboot(self) -> None:
        await self._unary(self._machine.Reboot, machine_pb2.RebootRequest())

    async def upgrade(self, image: str, *, stage: bool = False, deadline_s: float = 600.0) -> None:
        """The legacy call (all versions so far): install `image` over the running system and reboot by itself."""
        request = machine_pb2.UpgradeRequest(image=image, preserve=True, stage=stage)
        await self._unary(self._machine.Upgrade, request, deadline_s)

    async def pull_image(self, image: str, deadline_s: float = 900.0) -> str:
        """Have an installer image pulled (1.13+); the name it got. Raises NotThere when the registry has no such image."""
        request = lifecycle_pb2.ImageServicePullRequest(containerd=_SYSTEM, image_ref=image)
        call = ImageServiceStub(self._connection).Pull
        replies = await self._within(deadline_s, lambda: call(request, timeout=deadline_s))
        names = [reply.name for reply in replies if reply.WhichOneof("response") == "name"]
        if not names:
            raise Failed(self.address, _UNKNOWN, "the image pull ended without an image name")
        return names[-1]

    async def lifecycle_upgrade(self, image: str, deadline_s: float = 900.0) -> None:
        """Install a pulled image over the running system (1.13+). Does not reboot. Raises Failed with the log's end."""
        request = lifecycle_pb2.LifecycleServiceUpgradeRequest(
            containerd=_SYSTEM, source=lifecycle_pb2.InstallArtifactsSource(image_name=image)
        )
        call = LifecycleServiceStub(self._connection).Upgrade
        replies = await self._within(deadline_s, lambda: call(request, timeout=deadline_s))
        log = "".join(r.progress.message for r in replies if r.progress.WhichOneof("response") == "message")
        codes = [r.progress.exit_code for r in replies if r.progress.WhichOneof("response") == "exit_code"]
        if not codes or codes[-1] != 0:
            ended = f"exit code {codes[-1]}" if codes else "without an exit code"
            raise Failed(self.address, _UNKNOWN, f"the installer ended with {ended}: {log[-500:].strip()}")

    async def reset(self, *, graceful: bool, reboot: bool = True, wipe: Sequence[str] = ("STATE", "EPHEMERAL")) -> None:
        """Wipe the named system partitions, so that the machine comes back in maintenance mode. User disks stay."""
        partitions = [machine_pb2.ResetPartitionSpec(label=label, wipe=True) for label in wipe]
        request = machine_pb2.ResetRequest(graceful=graceful, reboot=reboot, system_partitions_to_wipe=partitions)
        await self._unary(self._machine.Reset, request, 120.0)

    # Files ----------------------------------------------------------------------------------------------------------

    async def kubeconfig(self) -> str:
        """A fresh admin kubeconfig. Available before bootstrap too; Unsupported on workers."""
        return _only_file(self.address, await self._stream(self._machine.Kubeconfig, Empty()))

    async def read(self, path: str) -> bytes:
        """A file of the machine. Raises NotThere."""
        return await self._stream(self._machine.Read, machine_pb2.ReadRequest(path=path))

    # How calls are made ---------------------------------------------------------------------------------------------

    async def _unary(self, method: Callable[..., Awaitable[Any]], request: Any, deadline_s: float | None = None) -> Any:
        limit = deadline_s or self._deadline_s
        reply = await self._within(limit, lambda: method(request, timeout=limit))
        return self._own(reply.messages)

    async def _stream(self, method: Callable[..., Awaitable[Sequence[common_pb2.Data]]], request: Any) -> bytes:
        pieces = await self._within(None, lambda: method(request, timeout=self._deadline_s))
        for piece in pieces:
            self._refuse(piece.metadata)
        return b"".join(piece.bytes for piece in pieces)

    def _own(self, messages: Sequence[M]) -> M:
        """The one message of the one machine we asked; its error may sit in the metadata under an OK status."""
        for message in messages:
            self._refuse(message.metadata)
        if len(messages) != 1:
            raise Failed(self.address, _UNKNOWN, f"received {len(messages)} answers from one machine")
        return messages[0]

    def _refuse(self, metadata: common_pb2.Metadata) -> None:
        if metadata.status.code:
            raise answered(self.address, metadata.status.code, metadata.status.message or metadata.error)
        if metadata.error:
            raise Failed(self.address, _UNKNOWN, metadata.error)

    async def _within(self, deadline_s: float | None, call: Callable[[], Awaitable[T]]) -> T:
        async with self._words(), asyncio.timeout(deadline_s or self._deadline_s):
            # In a task of its own: when a connection is lost, grpclib cancels the task that waits, and never takes that
            # back. The caller's own timeouts would then end in CancelledError for ever after.
            return await asyncio.ensure_future(call())

    @asynccontextmanager
    async def _words(self) -> AsyncIterator[None]:
        """Turns what grpclib and asyncio raise into our errors."""
        try:
            yield
        except TalosError:
            raise
        except GRPCError as error:
            raise answered(self.address, error.status.value, error.message or "") from None
        except (StreamTerminatedError, ProtocolError):
            raise self._connection.why_lost() from None
        except TimeoutError as error:
            raise Unreachable(self.address, f"timed out: {self._connection.doing}") from error
        except OSError:
            raise self._connection.why_lost() from None
        except (ValueError, AssertionError) as error:
            raise Failed(self.address, _UNKNOWN, str(error) or "the answer cannot be decoded") from None


def _service(info: machine_pb2.ServiceInfo) -> facts.Service:
    events = info.events.events
    healthy = None if info.health.unknown else info.health.healthy
    return facts.Service(info.id, info.state, healthy, events[-1].msg if events else info.health.last_message)


def _only_file(address: str, archive: bytes) -> str:
    """The first file of a gzipped tar. The archive of a machine has no end blocks, so nothing after it is looked for."""
    try:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
            entry = tar.next()
            content = tar.extractfile(entry) if entry is not None else None
            if content is None:
                raise Failed(address, _UNKNOWN, "the kubeconfig archive is empty")
            return content.read().decode()
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError):
        raise Failed(address, _UNKNOWN, "the kubeconfig archive cannot be read") from None
