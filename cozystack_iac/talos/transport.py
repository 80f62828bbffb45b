"""One connection to a Talos port: dial, handshake, judge the peer, then HTTP/2. Errors are ours, never a library's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import hashlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from cozystack_iac.talos.channel import DialledChannel, Http2
from cozystack_iac.talos.errors import PeerFault, PortClosed, TalosError, Unreachable, WrongPeer
from cozystack_iac.talos.identity import Identity, anonymous
from cozystack_iac.talos.machine import is_address

PORT = 50000  # apid and the maintenance service, Talos' ApidPort
MAINTENANCE_NAME = "maintenance-service.talos.dev"  # subject of every maintenance certificate, 1.10 to 1.14

# Alerts of the other side, by OpenSSL's names. They come with the first read: a TLS 1.3 handshake ends before the
# server has looked at our certificate.
_ALERTS: dict[str, PeerFault] = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": PeerFault.WANTS_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": PeerFault.FOREIGN_CLUSTER,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": PeerFault.CLOCK,
    "SSLV3_ALERT_BAD_CERTIFICATE": PeerFault.OUR_CERTIFICATE,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": PeerFault.OUR_CERTIFICATE,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": PeerFault.OUR_CERTIFICATE,
    "TLSV1_ALERT_DECRYPT_ERROR": PeerFault.FOREIGN_CLUSTER,  # another CA with the same subject name
}
# What OpenSSL calls bytes that are no TLS record.
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)
# What certificate verification found, by OpenSSL's X509_V_ERR numbers.
_VERIFICATION: dict[int, PeerFault] = {
    9: PeerFault.CLOCK,  # not yet valid
    10: PeerFault.CLOCK,  # has expired
    62: PeerFault.NAME,  # hostname mismatch
    64: PeerFault.NAME,  # IP address mismatch
}


@dataclass(frozen=True)
class Limits:
    """How much may be under way at once, shared by all machines of one run.

    A dial costs a descriptor and nothing else; a session costs some 150 KB (measured with 512 at once, `bench.probe`), so
    sessions are the scarce thing. A machine that does not answer its dial takes no session from others.
    """

    dials: asyncio.Semaphore
    sessions: asyncio.Semaphore

    @classmethod
    def of(cls, *, dials: int | None = None, sessions: int = 512) -> Limits:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = max(16, soft - 256) if soft != resource.RLIM_INFINITY else 4096
        sessions = min(sessions, max(8, free // 4))
        return cls(asyncio.Semaphore(dials or min(2048, free - sessions)), asyncio.Semaphore(sessions))


@dataclass(frozen=True, slots=True)
class Peer:
    """The certificate a machine showed."""

    der: bytes
    common_name: str
    issuer_organization: str
    fingerprint: str
    """base64 of SHA-256 over the public key (SPKI), as Talos prints it on the console in maintenance mode."""
    not_before: datetime
    not_after: datetime

    @classmethod
    def of(cls, der: bytes) -> Peer:
        """Raises ValueError for bytes that are no certificate."""
        certificate = x509.load_der_x509_certificate(der)
        spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return cls(
            der=der,
            common_name=_name(certificate.subject, NameOID.COMMON_NAME),
            issuer_organization=_name(certificate.issuer, NameOID.ORGANIZATION_NAME),
            fingerprint=base64.b64encode(hashlib.sha256(spki).digest()).decode(),
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )

    @property
    def in_maintenance(self) -> bool:
        """Whether this is the maintenance service's certificate (Talos 1.10 to 1.14 alike)."""
        return self.common_name == MAINTENANCE_NAME

    @property
    def from_talos_ca(self) -> bool:
        """Whether the issuer is called like every CA that Talos generates."""
        return self.issuer_organization == "talos"

    def skew(self, now: datetime) -> timedelta | None:
        """How far `now` lies outside the certificate's validity; None inside."""
        if now < self.not_before:
            return self.not_before - now
        return now - self.not_after if now > self.not_after else None


def _name(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    return ", ".join(str(attribute.value) for attribute in name.get_attributes_for_oid(oid))


@dataclass(frozen=True)
class Expected:
    """The peer we mean to meet: a machine in maintenance (its key pinned or not), or one of `identity`'s cluster."""

    identity: Identity | None = None
    fingerprint: str | None = None
    waits_for_first_word: ClassVar[bool] = True

    @property
    def context(self) -> ssl.SSLContext:
        return self.identity.context if self.identity is not None else _ANONYMOUS

    def judge(self, address: str, peer: Peer) -> None:
        """Raises WrongPeer. With an identity OpenSSL has verified the certificate already."""
        if self.identity is not None:
            return
        if not peer.in_maintenance:
            raise WrongPeer(address, PeerFault.WANTS_CERTIFICATE if peer.from_talos_ca else PeerFault.NOT_TALOS)
        if self.fingerprint is not None and peer.fingerprint != self.fingerprint:
            raise WrongPeer(address, PeerFault.FINGERPRINT, f"its fingerprint is {peer.fingerprint}")


_ANONYMOUS = anonymous()


class Connection(DialledChannel):
    """A channel that dials by our rules. Connects at the first call; `close` it, or use it as a context."""

    def __init__(self, address: str, port: int, expected: Expected, limits: Limits | None = None) -> None:
        super().__init__(address, port, expected.context)
        self.address = address
        self.port = port
        self.peer: Peer | None = None
        self.doing = "not connected yet"
        """How far the connection has come, for whoever has to say why there was no answer."""
        self._expected = expected
        self._limits = limits
        self._holds_session = False

    async def connect(self) -> Peer:
        """Dial now. Raises TalosError."""
        await self.connected()
        assert self.peer is not None
        return self.peer

    async def lost_within(self, seconds: float) -> bool:
        """Wait for the other side to end the present connection; True at once when there is none."""
        if self.http2 is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self.http2.gone.wait()
        except TimeoutError:
            return False
        return True

    def why_lost(self) -> TalosError:
        """What a call that ended with its connection should report."""
        lost = self.http2.lost if self.http2 is not None else None
        return explain(self.address, lost or ConnectionResetError("the connection was lost"))

    async def dialled(self) -> Http2:
        try:
            self.doing = "the connection attempt got no answer"
            sock = await self._dial()
        except OSError as error:
            raise explain(self.address, error) from None
        handed_over = False
        try:
            await self._take_session()
            self.doing = "it accepted the connection but sent nothing"
            handed_over = True
            http2 = await self._handshake(sock)
            self.doing = "it is connected but did not respond"
            return http2
        except BaseException as error:
            if handed_over:
                # The loop's transport owns the descriptor: closing it here would free its number under that transport,
                # and the next dial that is given the number would fail. At its end of file the transport closes itself.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            else:
                sock.close()
            self._give_session_back()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise await self._second_look(explain(self.address, error)) from None
            if isinstance(error, OSError | EOFError):
                raise explain(self.address, error) from None
            raise

    async def _second_look(self, found: TalosError) -> TalosError:
        """OpenSSL hides a certificate it does not trust. Who is it, if it is nobody of our cluster?"""
        if not isinstance(found, WrongPeer) or found.fault is not PeerFault.FOREIGN_CLUSTER:
            return found
        try:
            peer = await look(self.address, self.port, limits=self._limits)
        except TalosError as error:
            return error  # it left in between: nobody knows who it was
        if peer.in_maintenance:
            return WrongPeer(self.address, PeerFault.MAINTENANCE)
        if self._expected.identity is not None and self._expected.identity.signed_it(peer.der):
            return Unreachable(self.address, "it is replacing its certificate")  # maintenance a moment ago, ours by now
        return found if peer.from_talos_ca else WrongPeer(self.address, PeerFault.NOT_TALOS)

    async def _dial(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        flags = socket.AI_NUMERICHOST if is_address(self.address) else 0
        found = await loop.getaddrinfo(self.address, self.port, type=socket.SOCK_STREAM, flags=flags)
        error: OSError = OSError(errno.EADDRNOTAVAIL, "there is no address")
        for family, kind, protocol, _, target in found:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                async with _holding(self._limits.dials if self._limits else None):
                    await loop.sock_connect(sock, target)
            except OSError as this:
                sock.close()
                error = this
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise error

    async def _handshake(self, sock: socket.socket) -> Http2:
        http2 = await self.over_tls(sock, self._expected.context, self.address)
        transport = http2.transport
        assert transport is not None
        tls = transport.get_extra_info("ssl_object")
        try:
            der = tls.getpeercert(binary_form=True)
            if der is None:
                raise WrongPeer(self.address, PeerFault.NOT_TALOS, "it presented no certificate")
            self.peer = _parsed(self.address, der)
            self._expected.judge(self.address, self.peer)
            if tls.selected_alpn_protocol() != "h2":
                raise WrongPeer(self.address, PeerFault.NOT_TALOS, "it speaks TLS but not HTTP/2")
            if self._expected.waits_for_first_word:
                await http2.first_word
        except BaseException:
            transport.abort()
            raise
        return http2

    async def _take_session(self) -> None:
        if self._limits is not None and not self._holds_session:
            await self._limits.sessions.acquire()
            self._holds_session = True

    def _give_session_back(self) -> None:
        if self._limits is not None and self._holds_session:
            self._limits.sessions.release()
            self._holds_session = False

    def abort(self) -> None:
        """Hang up without a goodbye. A machine that wants a certificate is saying so just then: the farewell reads that alert,
        and OpenSSL hands an alert that nobody took to the next connection of this thread, whoever is on it."""
        if self.http2 is not None and self.http2.transport is not None:
            self.http2.transport.abort()
        self.close()

    def close(self) -> None:
        super().close()
        self._give_session_back()


async def look(address: str, port: int = PORT, *, limits: Limits | None = None) -> Peer:
    """Who listens there, by certificate alone: nothing but a handshake is sent, and any certificate will do.

    Raises TalosError when there is no certificate to look at. The caller sets the deadline.
    """
    connection = Connection(address, port, _Anybody(), limits)
    try:
        await connection.connect()
    except TalosError:
        if connection.peer is None:
            raise
    finally:
        connection.abort()
    assert connection.peer is not None
    return connection.peer


@dataclass(frozen=True)
class _Anybody(Expected):
    """Takes any certificate, to learn whose it is, and hangs up."""

    waits_for_first_word: ClassVar[bool] = False

    def judge(self, address: str, peer: Peer) -> None:
        return


def explain(address: str, error: BaseException) -> TalosError:
    """Our error for one of the operating system's or OpenSSL's. Decided by type and number, never by text."""
    if isinstance(error, ConnectionRefusedError):
        return PortClosed(address, "connection refused")
    if isinstance(error, ssl.SSLCertVerificationError):
        return WrongPeer(address, _VERIFICATION.get(error.verify_code, PeerFault.FOREIGN_CLUSTER))
    if isinstance(error, ssl.SSLError) and error.reason:
        if error.reason in _ALERTS:
            return WrongPeer(address, _ALERTS[error.reason])
        fault = PeerFault.NOT_TLS if error.reason in _NOT_TLS else PeerFault.NOT_TALOS
        return WrongPeer(address, fault, error.reason.lower().replace("_", " "))
    if isinstance(error, socket.gaierror):
        return Unreachable(address, "the name does not resolve")
    if isinstance(error, TimeoutError):
        return Unreachable(address, "no answer")
    if isinstance(error, OSError) and error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return Unreachable(address, "there is no route to it")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Unreachable(address, "this workstation is out of file descriptors (ulimit -n)")
    return Unreachable(address, "the connection was interrupted")


def _parsed(address: str, der: bytes) -> Peer:
    try:
        return Peer.of(der)
    except ValueError:
        raise WrongPeer(address, PeerFault.NOT_TALOS, "its certificate cannot be read") from None


@asynccontextmanager
async def _holding(semaphore: asyncio.Semaphore | None) -> AsyncIterator[None]:
    if semaphore is None:
        yield
        return
    async with semaphore:
        yield
