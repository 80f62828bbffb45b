"""DNS servers on loopback that say what the scenario tells them to: right answers, filtered ones, errors, nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from lab.scenario import ResolverSpec

TTL_S = 60
_CODES = {"nxdomain": dns.rcode.NXDOMAIN, "servfail": dns.rcode.SERVFAIL, "refused": dns.rcode.REFUSED}


class _Server(asyncio.DatagramProtocol):
    def __init__(self, spec: ResolverSpec) -> None:
        self._spec = spec

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            query = dns.message.from_wire(data)
        except dns.exception.DNSException:
            return
        reply = answer(self._spec, query)
        if reply is not None:
            self._transport.sendto(reply.to_wire(), addr)


def answer(spec: ResolverSpec, query: dns.message.Message) -> dns.message.Message | None:
    """The reply to one question; None for silence. Unknown names do not exist."""
    asked = query.question[0]
    says = _told(spec, asked.name.to_text(omit_final_dot=True).lower())
    if says == "silent":
        return None
    reply = dns.message.make_response(query)
    reply.flags |= dns.flags.RA
    if isinstance(says, str):
        reply.set_rcode(_CODES.get(says, dns.rcode.NOERROR))
        return reply
    kind = {dns.rdatatype.A: 4, dns.rdatatype.AAAA: 6}.get(asked.rdtype)
    found = [address for address in says if (6 if ":" in address else 4) == kind]
    if found:
        reply.answer.append(dns.rrset.from_text(asked.name, TTL_S, "IN", dns.rdatatype.to_text(asked.rdtype), *found))
    return reply


def _told(spec: ResolverSpec, name: str) -> tuple[str, ...] | str:
    """The entry for the name itself, else that of the closest `*.` above it."""
    known = {key.lower(): says for key, says in spec.names.items()}
    labels = name.split(".")
    stars = (f"*.{'.'.join(labels[depth:])}" for depth in range(1, len(labels)))
    return next((known[key] for key in (name, *stars) if key in known), "nxdomain")


async def serve(specs: Iterable[ResolverSpec]) -> None:
    """Answer until cancelled. Raises OSError for a taken address."""
    loop = asyncio.get_running_loop()
    transports: list[asyncio.DatagramTransport] = []
    try:
        for spec in specs:
            address = str(spec.address), spec.port
            transport, _ = await loop.create_datagram_endpoint(partial(_Server, spec), address)
            transports.append(transport)
        await asyncio.Event().wait()
    finally:
        for transport in transports:
            transport.close()
