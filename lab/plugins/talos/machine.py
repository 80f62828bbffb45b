"""Fetching the kubeconfig from a machine as the official plugin does: client certificate, ``node`` metadata, retries.

This is the stand-in's own small client on purpose: it must not inherit a mistake of the product's client.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import ssl
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.empty_pb2 import Empty
from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from cozystack_iac.talos.api.machine_grpc import MachineServiceStub
from lab.plugins.talos.clientconfig import Access

APID_PORT = 50_000
CALL_TIMEOUT_S = 30.0
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 10.0
GZIP_MAGIC = b"\x1f\x8b"


class Unavailable(Exception):
    """The machine gave no kubeconfig within the time allowed, or refused for good."""


@dataclass(frozen=True)
class Target:
    """The machine to ask, and the address to reach it at: ``host`` or ``host:port``."""

    node: str
    endpoint: str

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the endpoint."""
        host, colon, port = self.endpoint.rpartition(":")
        if colon and ":" not in host and port.isdecimal():
            return host, int(port)
        if self.endpoint.startswith("[") and port.isdecimal() and host.endswith("]"):
            return host[1:-1], int(port)
        return self.endpoint.strip("[]"), APID_PORT


async def kubeconfig(target: Target, access: Access, deadline_s: float) -> str:
    """Return the kubeconfig's text; every failure but InvalidArgument is retried until the deadline."""
    context = _tls(access)
    loop = asyncio.get_running_loop()
    end, pause = loop.time() + deadline_s, RETRY_FIRST_S
    while True:
        try:
            timeout = max(0.1, min(CALL_TIMEOUT_S, end - loop.time()))
            return _unpack(await asyncio.wait_for(_fetch(target, context), timeout))
        except GRPCError as error:
            failure = f"{error.status.name}: {error.message}"
            if error.status is Status.INVALID_ARGUMENT:
                raise Unavailable(f"failed to retrieve kubeconfig from {target.node}: {failure}") from error
        except (OSError, TimeoutError, ProtocolError, StreamTerminatedError, tarfile.TarError) as error:
            failure = str(error) or type(error).__name__
        if loop.time() + pause > end:
            raise Unavailable(
                f"failed to retrieve kubeconfig from {target.node} within {deadline_s:.0f} s; last answer: {failure}"
            )
        await asyncio.sleep(pause)
        pause = min(pause * 2, RETRY_MAX_S)


async def _fetch(target: Target, context: ssl.SSLContext) -> bytes:
    host, port = target.address
    # With a codec given, grpclib leaves google.rpc.Status alone, which the Pulumi SDK has registered as its own.
    channel = Channel(host, port, ssl=context, codec=ProtoCodec(), config=Configuration(ssl_target_name_override=host))
    try:
        stub = MachineServiceStub(channel)
        metadata = {"node": target.node, "runtime": "Talos"}
        return b"".join([part.bytes for part in await stub.Kubeconfig(Empty(), metadata=metadata)])
    finally:
        channel.close()


def _tls(access: Access) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=base64.b64decode(access.ca).decode())
    # OpenSSL knows the PKCS#8 inside, not the header that Talos puts around it.
    key = base64.b64decode(access.key).replace(b"ED25519 PRIVATE KEY", b"PRIVATE KEY")
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:  # made with mode 0600
        Path(file.name).write_bytes(base64.b64decode(access.cert) + key)
        context.load_cert_chain(file.name)
    return context


def _unpack(archive: bytes) -> str:
    data = gzip.decompress(archive) if archive.startswith(GZIP_MAGIC) else archive
    # The archive has no end blocks: reading past the first entry would fail.
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        entry = tar.next()
        content = tar.extractfile(entry) if entry is not None else None
        if content is None:
            raise tarfile.ReadError("the archive holds no kubeconfig")
        return content.read().decode()
