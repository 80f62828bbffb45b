"""The sockets behind `reachability` and `names`: one HTTPS request to a name at a given address, and one DNS question."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from cozystack_iac.reachability import proxies, served
from cozystack_iac.reachability.names import Address, Lookup, Said, endpoint
from cozystack_iac.reachability.outcomes import Endpoint, Failure, Outcome

PROBE_S = 5.0  # as long as a person would wait for a page to start loading
_HEADERS = 64  # more header lines than any ingress sends
_AGENT = "cozystack-iac"


async def probe(
    target: Endpoint, cluster_ca: str, *, environ: Mapping[str, str] = os.environ, deadline_s: float = PROBE_S
) -> Outcome:
    """GET / of `target`, by its address, with its name in SNI and Host. Does not retry, follow or resolve anything.

    `cluster_ca`: PEM that has to sign the certificate of a passthrough target. Other certificates are looked at, and say
    nothing about whether the platform is there. `environ` may name a proxy; the outcome says which way was used.
    """
    try:
        proxy, _ = proxies.choose(target.name, None if target.by_name else target.address, target.port, environ)
    except proxies.BadProxy as error:
        return Outcome(failure=Failure.PROXY, detail=str(error))
    outcome = await _attempt(target, cluster_ca, proxy, deadline_s, verify=True)
    if outcome.failure is Failure.CERTIFICATE and not target.passthrough:
        distrust = outcome.detail
        outcome = await _attempt(target, cluster_ca, proxy, deadline_s, verify=False)
        if outcome.served is not None:
            outcome = replace(outcome, served=replace(outcome.served, distrust=distrust))
    return replace(outcome, way=str(proxy) if proxy else "")


class _Stopped(Exception):
    """The proxy did not open the way."""


async def _attempt(
    target: Endpoint, cluster_ca: str, proxy: proxies.Proxy | None, deadline_s: float, *, verify: bool
) -> Outcome:
    try:
        async with (
            asyncio.timeout(deadline_s),
            _connection(target, _context(cluster_ca if target.passthrough else "", verify), proxy) as (reader, writer),
        ):
            return await _exchange(target, reader, writer)
    except TimeoutError:
        return Outcome(failure=Failure.TIMEOUT, detail=f"after {deadline_s:.0f} s")
    except _Stopped as error:
        return Outcome(failure=Failure.PROXY, detail=str(error))
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


@lru_cache(maxsize=8)
def _context(ca: str, verify: bool) -> ssl.SSLContext:
    """Loading this workstation's authorities takes a while, and a wait probes every second."""
    context = ssl.create_default_context(cadata=ca or None)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@asynccontextmanager
async def _connection(
    target: Endpoint, context: ssl.SSLContext, proxy: proxies.Proxy | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if proxy is None:
        reader, writer = await asyncio.open_connection(
            str(target.address), target.port, ssl=context, server_hostname=target.name
        )
    else:
        reader, writer = await _tunnel(target, proxy)
    try:
        if proxy is not None:
            await writer.start_tls(context, server_hostname=target.name)
        yield reader, writer
    finally:
        writer.transport.abort()  # the answer's body and a polite end of TLS are of no interest


async def _tunnel(target: Endpoint, proxy: proxies.Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to `target` as the proxy made it. Raises _Stopped with the proxy's own words."""
    try:
        tls = _context("", True) if proxy.tls else None
        reader, writer = await asyncio.open_connection(proxy.host, proxy.port, ssl=tls)
    except OSError as error:
        raise _Stopped(
            f"no connection to {proxy}: {getattr(error, 'strerror', None) or type(error).__name__}"
        ) from None
    address = f"[{target.address}]" if target.address.version == 6 else str(target.address)
    address = target.name if target.by_name else address
    authorization = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    place = f"{address}:{target.port}"
    writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{authorization}User-Agent: {_AGENT}\r\n\r\n".encode())
    try:
        status, reason, _ = await _head(reader)
    except (OSError, asyncio.IncompleteReadError):
        status, reason = None, "it closed the connection"
    if status is None or not 200 <= status < 300:
        writer.transport.abort()
        asks = "; it requires credentials: add them to the proxy's URL" if status == 407 else ""
        raise _Stopped(f"{proxy} answered {status or ''} {reason}".rstrip() + asks)
    return reader, writer


async def _exchange(target: Endpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Outcome:
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    host = target.name if target.port == 443 else f"{target.name}:{target.port}"
    writer.write(
        f"GET / HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {_AGENT}\r\nAccept: */*\r\nConnection: close\r\n\r\n".encode()
    )
    await writer.drain()
    status, _, headers = await _head(reader)
    try:
        certificate = served.read(shown)
    except (TypeError, ValueError):
        certificate = None
    if status is None:
        return Outcome(detail="the response is not HTTP", served=certificate)
    return Outcome(status=status, location=_redirected(headers), served=certificate)


async def _head(reader: asyncio.StreamReader) -> tuple[int | None, str, dict[str, str]]:
    """Status, reason and headers of an answer; no status when it is not HTTP."""
    headers: dict[str, str] = {}
    try:
        first = (await reader.readuntil(b"\n")).decode("latin-1").split(maxsplit=2)
        if not (len(first) >= 2 and first[0].startswith("HTTP/") and first[1].isdigit()):
            return None, "a response that is not HTTP", headers
        for _ in range(_HEADERS):
            line = (await reader.readuntil(b"\n")).decode("latin-1").strip()
            if not line:
                break
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
    except asyncio.LimitOverrunError:
        return None, "a response that is not HTTP", headers
    return int(first[1]), first[2].strip() if len(first) > 2 else "", headers


def _redirected(headers: Mapping[str, str]) -> str:
    """The host a redirect leads to; query and path may carry tokens and are of no interest."""
    try:
        return urlsplit(headers.get("location", "")).hostname or ""
    except ValueError:
        return ""


# Names --------------------------------------------------------------------------------------------------------------

_SAID = {"REFUSED": Said.REFUSED, "SERVFAIL": Said.FAILED}


async def lookup_here(name: str, *, deadline_s: float = PROBE_S) -> Lookup:
    """What programs on this workstation get for `name`, its hosts file and search domains included."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(deadline_s):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        return Lookup(Said.SILENT, detail=f"after {deadline_s:.0f} s")
    except socket.gaierror as error:
        no_data = getattr(socket, "EAI_NODATA", None)
        said = {socket.EAI_NONAME: Said.NXDOMAIN, no_data: Said.EMPTY, socket.EAI_AGAIN: Said.SILENT}
        return Lookup(said.get(error.errno, Said.FAILED), detail=error.strerror or str(error))
    except UnicodeError:
        return Lookup(Said.NXDOMAIN, detail="the name is not valid in DNS")
    return Lookup.of(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found)


def search_domains() -> tuple[str, ...]:
    """The domains this workstation tries behind a name; none when its configuration cannot be read."""
    import dns.exception
    import dns.resolver

    try:
        return tuple(domain.to_text(omit_final_dot=True) for domain in dns.resolver.Resolver().search)
    except (dns.exception.DNSException, OSError):
        return ()


async def lookup_at(name: str, resolver: str, *, label: str = "", deadline_s: float = PROBE_S) -> Lookup:
    """A and AAAA of `name` from the resolver at `resolver`, an address with or without a port."""
    answers = await asyncio.gather(
        *(_ask(name, kind, resolver, label or resolver, deadline_s) for kind in ("A", "AAAA"))
    )
    found = frozenset[Address]().union(*(answer.addresses for answer in answers))
    return Lookup.of(found, label or resolver) if found else answers[0]  # without AAAA a name is as good as any


async def _ask(name: str, kind: str, resolver: str, label: str, deadline_s: float) -> Lookup:
    # Imported where it is used: every preview would wait a tenth of a second for it, in two processes.
    import dns.asyncresolver
    import dns.exception
    import dns.resolver

    asker = dns.asyncresolver.Resolver(configure=False)
    address, asker.port = endpoint(resolver)
    asker.nameservers = [address]
    try:
        answer = await asker.resolve(name, kind, lifetime=deadline_s, raise_on_no_answer=False, search=False)
    except dns.resolver.NXDOMAIN:
        return Lookup(Said.NXDOMAIN, resolver=label)
    except dns.resolver.NoNameservers as error:
        said = next((said for code, said in _SAID.items() if code in str(error)), Said.FAILED)
        return Lookup(said, resolver=label)
    except dns.exception.Timeout:
        return Lookup(Said.SILENT, resolver=label, detail=f"after {deadline_s:.0f} s")
    except (dns.exception.DNSException, OSError) as error:
        return Lookup(Said.SILENT, resolver=label, detail=str(error) or type(error).__name__)
    return Lookup.of((ip_address(record.to_text()) for record in answer.rrset or ()), label)
