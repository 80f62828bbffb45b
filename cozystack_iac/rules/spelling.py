"""How addresses, networks, names and hosts are written: what a text most likely means, and what is wrong with it."""

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Net: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface

LABEL_MAXIMUM = 63  # RFC 1123
NAME_MAXIMUM = 253

_LABEL = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$", re.ASCII)
_DOTTED = re.compile(r"^\d{1,10}(?:\.\d{1,10}){3}$", re.ASCII)
_PLAIN_NUMBER = re.compile(r"^(?:0x[0-9a-f]{1,32}|\d{1,39})$", re.ASCII | re.IGNORECASE)
_LONGEST = 300  # nothing here is longer; keeps hostile input cheap


@dataclass(frozen=True, slots=True)
class Spelled:
    """An address as it is most likely meant (None: no idea), and what is wrong with the spelling (None: nothing)."""

    address: Address | None
    problem: str | None = None


def address_in(text: str) -> Spelled:
    """Read an address; never raises. IPv4-mapped and other spellings of the same address mean the same one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return _odd_address(text[:_LONGEST])
    if isinstance(address, ipaddress.IPv4Address):
        return Spelled(address)
    if address.scope_id is not None:
        plain = ipaddress.IPv6Address(int(address))
        return Spelled(plain, f"it has a zone (`%{address.scope_id}`), which is only valid on one machine")
    if address.ipv4_mapped is not None:
        return Spelled(address.ipv4_mapped, "it is an IPv4 address written as IPv6")
    return Spelled(address)


def _odd_address(text: str) -> Spelled:
    stripped = text.strip()
    if not stripped:
        return Spelled(None, "it is empty")
    if stripped != text:
        return Spelled(address_in(stripped).address, "it has leading or trailing whitespace")
    if "/" in text:
        meant = address_in(text.split("/", 1)[0]).address
        return Spelled(meant, "it has a prefix length")
    if text.startswith("[") and text.endswith("]"):
        return Spelled(address_in(text[1:-1]).address, "it is in brackets")
    if _DOTTED.match(text):
        return _odd_octets(text)
    if _PLAIN_NUMBER.match(text):
        return Spelled(_from_number(text), "it is written as a single number")
    return Spelled(None, "it is not an IP address")


def _odd_octets(text: str) -> Spelled:
    octets = [int(part) for part in text.split(".")]
    if max(octets) > 255:
        return Spelled(None, f"{max(octets)} is too large for an octet")
    meant = ipaddress.IPv4Address(".".join(map(str, octets)))
    return Spelled(meant, "it has leading zeros, which some programs read as octal")


def _from_number(text: str) -> Address | None:
    number = int(text, 16) if text[:2].lower() == "0x" else int(text)
    return ipaddress.IPv4Address(number) if number < 2**32 else None


@dataclass(frozen=True, slots=True)
class SpelledNet:
    """A network as meant, and what is wrong; `host_bits` when only bits beyond the prefix are set."""

    net: Net | None
    problem: str | None = None
    host_bits: bool = False


def network_in(text: str) -> SpelledNet:
    """Read one network in CIDR notation; never raises."""
    head, slash, tail = text[:_LONGEST].partition("/")
    if not slash:
        return SpelledNet(None, "it has no prefix length" if address_in(head).address else "it is not a network")
    if not (tail.isascii() and tail.isdigit()):
        try:
            meant = ipaddress.ip_network(text.strip(), strict=False)
        except ValueError:
            return SpelledNet(None, "its prefix length is not a number")
        return SpelledNet(meant, f"it is not in CIDR notation; write `{meant}`")
    spelled = address_in(head)
    if spelled.address is None:
        return SpelledNet(None, spelled.problem)
    try:
        meant = ipaddress.ip_network(f"{spelled.address}/{int(tail)}", strict=False)
    except ValueError:
        return SpelledNet(None, f"the prefix length {tail[:6]} is not possible")
    if spelled.problem is not None:
        return SpelledNet(meant, spelled.problem)
    if tail != str(int(tail)):
        return SpelledNet(meant, "its prefix length has leading zeros")
    return SpelledNet(meant, None, host_bits=meant.network_address != spelled.address)


def interface_in(text: str) -> Interface | None:
    """An address with its prefix length (`10.0.0.11/24`), or None."""
    if "/" not in text or address_in(text.split("/", 1)[0]).problem is not None:
        return None
    try:
        return ipaddress.ip_interface(text)
    except ValueError:
        return None


def span_in(text: str) -> tuple[Address, Address] | None:
    """First and last address of a CIDR or a `first-last` span, or None."""
    if "-" in text and len(text) <= _LONGEST:
        first, last = (address_in(part.strip()) for part in text.split("-", 1))
        if first.address is None or last.address is None or first.problem or last.problem:
            return None
        if first.address.version != last.address.version or int(first.address) > int(last.address):
            return None
        return first.address, last.address
    spelled = network_in(text)
    if spelled.net is None or spelled.problem or spelled.host_bits:
        return None
    return spelled.net.network_address, spelled.net.broadcast_address


# Names ------------------------------------------------------------------------------------------------------------------


def is_label(text: str) -> bool:
    """Whether `text` is one lower-case DNS label (RFC 1123)."""
    return _LABEL.match(text) is not None


def label_problem(text: str) -> str | None:
    """What keeps `text` from being a DNS label, in words; None when it is one."""
    if is_label(text):
        return None
    if text != text.strip():
        return "it has leading or trailing whitespace"
    if len(text) > LABEL_MAXIMUM:
        return f"it has {len(text)} characters, but the limit is {LABEL_MAXIMUM}"
    if "." in text:
        return "it contains dots; a label is a single part of a domain name"
    if is_label(text.lower()):
        return "it contains uppercase letters"
    odd = sorted({character for character in text.lower() if not re.match(r"[a-z0-9-]", character, re.ASCII)})
    if odd:
        return f"it contains {', '.join(repr(character) for character in odd[:3])}"
    return "it starts or ends with a dash"


def label_like(text: str) -> str | None:
    """The nearest DNS label, or None when nothing is left of `text`."""
    plain = unicodedata.normalize("NFKD", text[:_LONGEST].strip().lower())
    letters = "".join(character for character in plain if not unicodedata.combining(character))
    label = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9]", "-", letters))[:LABEL_MAXIMUM].strip("-")
    return label or None


def domain_problem(text: str) -> str | None:
    """What keeps `text` from being a domain name of at least one label, in words; None when it is one."""
    if not text:
        return "it is empty"
    if "://" in text:
        return "it is a URL; write the host only"
    if text.startswith("*."):
        return "it starts with a wildcard, which is added automatically where needed"
    if text.endswith("."):
        return "it ends with a dot"
    if len(text) > NAME_MAXIMUM:
        return f"it has more than {NAME_MAXIMUM} characters"
    if address_in(text).address is not None:
        return "it is based on an IP address, which cannot have subdomains"
    for label in text.split("."):
        if not label:
            return "it starts with a dot or has two dots in a row"
        problem = label_problem(label)
        if problem is not None:
            return f"in `{label[:LABEL_MAXIMUM]}`, {problem}"
    return None


def host_problem(text: str) -> str | None:
    """What keeps `text` from being a host, name or address, in words; None when it is one."""
    spelled = address_in(text)
    if spelled.address is not None:
        return spelled.problem
    return domain_problem(text)


def unusable(address: Address) -> str | None:
    """Why no machine can have this address, in words; None when one can."""
    if address.is_loopback:
        return "a loopback address"
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_link_local:
        return "a link-local address"
    if int(address) == 2**32 - 1 and address.version == 4:
        return "the broadcast address"
    if address.version == 4 and (int(address) >> 24 == 0 or int(address) >> 28 == 15):
        return "a reserved address"
    return None


def private(address: Address) -> bool:
    """Whether the address is of a private network (RFC 1918, RFC 4193)."""
    # Not `is_private`: that also covers the documentation ranges every example uses.
    if address.version == 6:
        return int(address) >> 121 == 0xFC >> 1
    number = int(address)
    return number >> 24 == 10 or number >> 20 == 0xAC1 or number >> 16 == 0xC0A8
