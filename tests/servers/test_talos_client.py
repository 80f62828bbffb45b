"""The client against a server that behaves, in TLS and in status codes, as Talos does."""

import asyncio
import base64
import gzip
import io
import socket
import ssl
import tarfile
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from ruamel.yaml import YAML

from cozystack_iac.talos.api import common_pb2, lifecycle_pb2, machine_pb2
from cozystack_iac.talos.client import Machine
from cozystack_iac.talos.errors import (
    AlreadyDone,
    Answered,
    Failed,
    NotAuthorized,
    NotThere,
    NotYet,
    PeerFault,
    PortClosed,
    Rejected,
    TalosError,
    Unreachable,
    Unsupported,
    WrongPeer,
)
from cozystack_iac.talos.identity import Identity
from cozystack_iac.talos.machine import ApplyMode, Stage
from cozystack_iac.talos.transport import Limits, look
from tests.talos_machine import (
    MAINTENANCE,
    Answers,
    Authority,
    Pair,
    configured,
    in_maintenance,
    server_context,
    serving,
)

VERSIONS = "Versions.runtime.talos.dev"
RUNNING = {VERSIONS: {"version": "name: Talos\nversion: v1.13.6\n"}}


async def meet(port: int, identity: Identity | None = None, fingerprint: str | None = None) -> TalosError | str:
    """What happens when this client asks the machine at `port` for its version."""
    machine = Machine("127.0.0.1", port=port, identity=identity, fingerprint=fingerprint, deadline_s=2)
    async with machine:
        try:
            return await machine.version()
        except TalosError as error:
            return error


async def fault(context: ssl.SSLContext, identity: Identity | None = None, fingerprint: str | None = None) -> PeerFault:
    async with serving(context, Answers(resources=RUNNING)) as port:
        error = await meet(port, identity, fingerprint)
    assert isinstance(error, WrongPeer), error
    return error.fault


async def test_a_machine_in_maintenance_answers_a_client_without_certificate() -> None:
    async with serving(in_maintenance(), Answers(resources=RUNNING)) as port:
        assert await meet(port) == "v1.13.6"


async def test_a_configured_machine_answers_a_client_of_its_cluster() -> None:
    ours = Authority.named()
    async with serving(configured(ours), Answers(resources=RUNNING)) as port:
        assert await meet(port, ours.client()) == "v1.13.6"


async def test_a_pinned_fingerprint_lets_only_that_machine_through() -> None:
    context = in_maintenance()
    async with serving(context, Answers(resources=RUNNING)) as port:
        peer = await look("127.0.0.1", port)
        assert await meet(port, fingerprint=peer.fingerprint) == "v1.13.6"
        assert isinstance(other := await meet(port, fingerprint="AAAA"), WrongPeer)
        assert other.fault is PeerFault.FINGERPRINT


async def test_a_configured_machine_turns_a_client_without_certificate_away() -> None:
    assert await fault(configured(Authority.named())) is PeerFault.WANTS_CERTIFICATE


async def test_a_machine_of_another_cluster_is_not_trusted() -> None:
    assert await fault(configured(Authority.named()), Authority.named().client()) is PeerFault.FOREIGN_CLUSTER


async def test_a_machine_that_does_not_know_our_ca_is_of_another_cluster() -> None:
    ours = Authority.named()
    context = server_context(ours.server(), Authority.named().pem)
    assert await fault(context, ours.client()) is PeerFault.FOREIGN_CLUSTER


async def test_our_machine_back_in_maintenance_is_recognised() -> None:
    assert await fault(in_maintenance(), Authority.named().client()) is PeerFault.MAINTENANCE


async def test_a_client_certificate_without_client_usage_is_refused_by_the_machine() -> None:
    ours = Authority.named()
    found = await fault(configured(ours), ours.client(usage=ExtendedKeyUsageOID.SERVER_AUTH))
    assert found is PeerFault.OUR_CERTIFICATE


@pytest.mark.parametrize("shift", [timedelta(days=-3), timedelta(days=3)])
async def test_a_certificate_of_another_time_is_a_clock_problem(shift: timedelta) -> None:
    ours = Authority.named()
    context = server_context(ours.server(shift=shift), ours.pem)
    assert await fault(context, ours.client()) is PeerFault.CLOCK


async def test_a_certificate_without_the_dialled_address_is_a_name_problem() -> None:
    ours = Authority.named()
    assert await fault(server_context(ours.server(address="10.0.0.1"), ours.pem), ours.client()) is PeerFault.NAME


async def test_some_other_tls_server_is_not_talos() -> None:
    assert await fault(server_context(Authority.named("acme").server("www"))) is PeerFault.NOT_TALOS
    assert (
        await fault(server_context(Authority.named("acme").server("www")), Authority.named().client())
        is PeerFault.NOT_TALOS
    )


async def test_a_server_without_http2_is_not_talos() -> None:
    context = server_context(Authority.named(None).server(MAINTENANCE), alpn=False)
    assert await fault(context) is PeerFault.NOT_TALOS


async def test_a_tls_1_2_server_is_not_talos() -> None:
    context = server_context(Authority.named(None).server(MAINTENANCE))
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    assert await fault(context) is PeerFault.NOT_TALOS


@pytest.fixture
async def plain(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """A server that sends `request.param` to whoever comes, and hangs up unless that is None."""
    greeting: bytes | None = request.param

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if greeting is None:
            await asyncio.sleep(30)
        writer.write(greeting or b"")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("plain", [b"SSH-2.0-OpenSSH_9.6\r\n"], indirect=True)
async def test_a_server_that_does_not_speak_tls_is_named_as_such(plain: int) -> None:
    error = await meet(plain)
    assert isinstance(error, WrongPeer)
    assert error.fault is PeerFault.NOT_TLS


@pytest.mark.parametrize("plain", [None], indirect=True)
async def test_a_silent_server_costs_the_deadline_and_is_unreachable(plain: int) -> None:
    error = await meet(plain)
    assert isinstance(error, Unreachable)
    assert "sent nothing" in error.text


@pytest.mark.parametrize("plain", [b""], indirect=True)
async def test_a_server_that_hangs_up_is_unreachable(plain: int) -> None:
    assert isinstance(await meet(plain), Unreachable)


async def test_a_closed_port_is_not_the_same_as_no_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert isinstance(await meet(port), PortClosed)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_ARGUMENT, Rejected),
        (Status.NOT_FOUND, NotThere),
        (Status.ALREADY_EXISTS, AlreadyDone),
        (Status.PERMISSION_DENIED, NotAuthorized),
        (Status.FAILED_PRECONDITION, NotYet),
        (Status.UNAVAILABLE, NotYet),
        (Status.UNIMPLEMENTED, Unsupported),
        (Status.UNKNOWN, Failed),
        (Status.INTERNAL, Failed),
    ],
)
async def test_a_status_becomes_an_error_with_its_code_and_text(status: Status, kind: type[Answered]) -> None:
    answers = Answers(calls={"Bootstrap": GRPCError(status, "the text")})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        with pytest.raises(kind) as caught:
            await machine.bootstrap()
    assert (type(caught.value), caught.value.code, caught.value.text) == (kind, status.value, "the text")


async def test_an_error_inside_an_ok_answer_is_an_error() -> None:
    status = common_pb2.Status(code=14, message="connection refused")
    metadata = common_pb2.Metadata(hostname="10.0.0.13", error="rpc error: ...", status=status)
    reply = machine_pb2.EtcdMemberListResponse(messages=[machine_pb2.EtcdMembers(metadata=metadata)])
    data = common_pb2.Data(metadata=metadata)
    answers = Answers(calls={"EtcdMemberList": reply, "Read": data})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        with pytest.raises(NotYet, match="connection refused"):
            await machine.etcd_members()
        with pytest.raises(NotYet, match="connection refused"):
            await machine.read("/proc/modules")


async def test_two_answers_from_one_machine_are_refused() -> None:
    reply = machine_pb2.EtcdMemberListResponse(messages=[machine_pb2.EtcdMembers(), machine_pb2.EtcdMembers()])
    answers = Answers(calls={"EtcdMemberList": reply})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        with pytest.raises(Failed, match="2 answers"):
            await machine.etcd_members()


async def test_a_call_without_an_answer_ends_at_its_deadline() -> None:
    answers = Answers(calls={"Bootstrap": lambda _: asyncio.sleep(30)})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port, deadline_s=0.3) as machine:
        with pytest.raises(Unreachable):
            await machine.bootstrap()


async def test_applying_hands_over_the_whole_configuration() -> None:
    reply = machine_pb2.ApplyConfigurationResponse(
        messages=[machine_pb2.ApplyConfiguration(mode="NO_REBOOT", warnings=["old key"], mode_details="Applied")]
    )
    answers = Answers(calls={"ApplyConfiguration": reply})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        applied = await machine.apply("x" * (5 * 1024 * 1024), ApplyMode.AUTO, dry_run=True)

    [request] = answers.requests("ApplyConfiguration")
    assert (len(request.data), request.mode, request.dry_run) == (5 * 1024 * 1024, 1, True)
    assert (applied.mode, applied.warnings) == (ApplyMode.NO_REBOOT, ("old key",))
    assert "Applied" not in repr(applied).removeprefix("Applied(")


async def test_a_kubeconfig_comes_out_of_an_archive_without_an_end() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("kubeconfig")
        entry.size = len(b"apiVersion: v1\n")
        tar.addfile(entry, io.BytesIO(b"apiVersion: v1\n"))
    archive = gzip.compress(packed.getvalue()[: 512 + len(b"apiVersion: v1\n")])
    pieces = [common_pb2.Data(bytes=archive[:20]), common_pb2.Data(bytes=archive[20:])]
    answers = Answers(calls={"Kubeconfig": pieces})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        assert await machine.kubeconfig() == "apiVersion: v1\n"


async def test_an_installer_that_fails_under_an_ok_status_is_a_failure() -> None:
    progress = [
        lifecycle_pb2.LifecycleServiceInstallProgress(message="no space left"),
        lifecycle_pb2.LifecycleServiceInstallProgress(exit_code=1),
    ]
    replies = [lifecycle_pb2.LifecycleServiceUpgradeResponse(progress=one) for one in progress]
    answers = Answers(calls={"Upgrade": replies})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        with pytest.raises(Failed, match="exit code 1: no space left"):
            await machine.lifecycle_upgrade("registry/talos:v1")


async def test_a_resource_of_an_unknown_shape_is_a_failure_not_a_crash() -> None:
    answers = Answers(resources={VERSIONS: {"version": "- a\n- b\n"}})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        with pytest.raises(Failed, match="unknown format"):
            await machine.version()


async def test_an_unknown_stage_is_unknown_and_no_system_disk_is_none() -> None:
    answers = Answers(resources={"MachineStatuses.runtime.talos.dev": {"machine": "stage: dreaming\n"}})
    async with serving(in_maintenance(), answers) as port, Machine("127.0.0.1", port=port) as machine:
        assert await machine.stage() is Stage.UNKNOWN
        assert await machine.system_disk() is None


async def test_two_hundred_machines_are_asked_at_once_with_few_sessions_open() -> None:
    answers = Answers(resources=RUNNING)
    limits = Limits.of(sessions=16)
    async with serving(in_maintenance(), answers) as port:

        async def one() -> str:
            async with Machine("127.0.0.1", port=port, limits=limits, deadline_s=60) as machine:
                return await machine.version()

        assert set(await asyncio.gather(*(one() for _ in range(200)))) == {"v1.13.6"}
    assert limits.sessions._value == 16  # every session was given back


def test_an_identity_from_a_client_configuration_accepts_talos_key_header() -> None:
    ours = Authority.named().client()
    key = ours.key.replace("PRIVATE KEY", "ED25519 PRIVATE KEY")
    encoded = {
        "caCertificate": base64.b64encode(ours.ca.encode()).decode(),
        "clientCertificate": base64.b64encode(ours.certificate.encode()).decode(),
        "clientKey": base64.b64encode(key.encode()).decode(),
    }

    assert Identity.from_client_configuration(encoded).key == ours.key


@pytest.mark.parametrize("parts", [{}, {"caCertificate": "!", "clientCertificate": "a", "clientKey": "b"}])
def test_a_broken_client_configuration_is_a_sentence(parts: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"is missing|base64"):
        Identity.from_client_configuration(parts)


def test_a_key_never_shows() -> None:
    identity = Authority.named().client()
    assert "PRIVATE" not in repr(identity)


async def test_a_foreign_machine_costs_our_own_nothing() -> None:
    """One thread speaks to all machines, and OpenSSL keeps one queue of errors per thread."""
    ours, theirs = Authority.named(), Authority.named()
    identity = ours.client()
    async with (
        serving(configured(ours), Answers(resources=RUNNING)) as port,
        serving(configured(theirs), Answers(resources=RUNNING)) as foreign,
    ):
        met = [await asyncio.gather(meet(port, identity), meet(foreign, identity)) for _ in range(10)]

    assert {str(own) for own, _ in met} == {"v1.13.6"}
    assert {error.fault for _, error in met if isinstance(error, WrongPeer)} == {PeerFault.FOREIGN_CLUSTER}


async def test_a_connection_that_breaks_during_a_call_leaves_the_callers_own_timeouts_alone() -> None:
    ours = Authority.named()
    asked = asyncio.Event()

    async def never(_request: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            async with serving(configured(ours), Answers({"Reboot": never}, RUNNING)) as port:
                machine = Machine("127.0.0.1", port=port, identity=ours.client(), deadline_s=5)
                call = asyncio.ensure_future(asked.wait())
                call.add_done_callback(lambda _: machine.close())
                with pytest.raises(TalosError):
                    await machine.reboot()
            await asyncio.Event().wait()


async def test_recorded_certificates_are_judged_like_real_ones(vectors: Path) -> None:
    tls = vectors / "talos" / "tls"
    talosconfig = YAML(typ="safe").load(vectors / "talos" / "configs" / "talosconfig-long-lived")
    context = talosconfig["contexts"][talosconfig["context"]]
    names = {"caCertificate": "ca", "clientCertificate": "crt", "clientKey": "key"}
    identity = Identity.from_client_configuration({long: context[short] for long, short in names.items()})
    pins = dict(line.split() for line in (tls / "fingerprints.txt").read_text().splitlines())

    def pair(name: str) -> Pair:
        return Pair((tls / f"{name}.crt").read_text(), (tls / f"{name}.key").read_text().replace("ED25519 ", ""))

    async with serving(server_context(pair("maintenance-server")), Answers(resources=RUNNING)) as port:
        assert await meet(port, fingerprint=pins["maintenance-server"]) == "v1.13.6"
    secure = server_context(pair("apid-node1-server"), (tls / "os-ca.crt").read_text())
    async with serving(secure, Answers(resources=RUNNING)) as port:
        peer = await look("127.0.0.1", port)
        assert (peer.fingerprint, peer.from_talos_ca) == (pins["apid-node1-server"], True)
        assert identity.signed_it(peer.der)
        assert await meet(port, identity) == "v1.13.6"
