"""The sockets behind `reachability`: one HTTPS request to a name at a given address, and one DNS question."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from ipaddress import ip_address

import dns.asyncresolver
import dns.exception
import dns.resolver

from cozystack_iac.readiness.reachability import Address, Failure, Lookup, Outcome, Target

PROBE_S = 5.0  # as long as a person would wait for a page to start loading


async def probe(target: Target, cluster_ca: str, *, deadline_s: float = PROBE_S) -> Outcome:
    """GET / of `target`, by its address, with its name in SNI and Host. Does not retry, follow or resolve anything.

    `cluster_ca`: PEM that has to sign the certificate of a passthrough target. Other certificates are not judged here: an
    ACME certificate may still be on its way while the platform is well.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await _exchange(target, _context(target, cluster_ca))
    except TimeoutError:
        return Outcome(failure=Failure.TIMEOUT, detail=f"{deadline_s:.0f} s")
    except ssl.SSLCertVerificationError as error:
        return Outcome(failure=Failure.CERTIFICATE, detail=error.verify_message)
    except ssl.SSLError as error:
        return Outcome(failure=Failure.HANDSHAKE, detail=(error.reason or "").replace("_", " ").lower())
    except ConnectionRefusedError:
        return Outcome(failure=Failure.REFUSED)
    except (ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError):
        return Outcome(failure=Failure.CLOSED)
    except OSError as error:
        known = errno.errorcode.get(error.errno or 0, "")
        return Outcome(failure=Failure.UNREACHABLE, detail=error.strerror or known or str(error))


def _context(target: Target, cluster_ca: str) -> ssl.SSLContext:
    if target.passthrough:
        return ssl.create_default_context(cadata=cluster_ca)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _exchange(target: Target, context: ssl.SSLContext) -> Outcome:
    reader, writer = await asyncio.open_connection(
        str(target.address), target.port, ssl=context, server_hostname=target.name
    )
    try:
        host = target.name if target.port == 443 else f"{target.name}:{target.port}"
        writer.write(
            f"GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: cozystack-iac\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        line = (await reader.readuntil(b"\n")).decode("latin-1").split()
    except asyncio.LimitOverrunError:
        line = []
    finally:
        writer.transport.abort()  # the answer's body and a polite end of TLS are of no interest
    if len(line) >= 2 and line[0].startswith("HTTP/") and line[1].isdigit():
        return Outcome(status=int(line[1]))
    return Outcome(detail="not HTTP")


async def lookup_here(name: str, *, deadline_s: float = PROBE_S) -> Lookup:
    """What programs on this workstation get for `name`, its hosts file included."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(deadline_s):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        return Lookup(error=f"no answer in {deadline_s:.0f} s")
    except socket.gaierror as error:
        absent = error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
        return Lookup() if absent else Lookup(error=error.strerror or str(error))
    return Lookup(frozenset(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


async def lookup_at(name: str, resolver: str, *, port: int = 53, deadline_s: float = PROBE_S) -> Lookup:
    """A and AAAA of `name` from the resolver at the address `resolver`."""
    asker = dns.asyncresolver.Resolver(configure=False)
    asker.nameservers, asker.port = [resolver], port
    found: set[Address] = set()
    try:
        for kind in ("A", "AAAA"):
            answer = await asker.resolve(name, kind, lifetime=deadline_s, raise_on_no_answer=False, search=False)
            found |= {ip_address(record.to_text()) for record in answer.rrset or ()}
    except dns.resolver.NXDOMAIN:
        return Lookup()
    except (dns.exception.DNSException, OSError) as error:
        return Lookup(error=str(error) or type(error).__name__)
    return Lookup(frozenset(found))
