"""Reading a machine config as a machine of a given Talos minor does: documents, known keys, typed values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML
from yaml import YAMLError

from cozystack_iac import go_yaml
from lab.machines.documents import kinds, main_schema, unknown

Doc = dict[str, Any]


class Undecodable(Exception):
    """The text is no config for this Talos minor; the message is the one Talos gives, as far as it is known."""


def documents(text: str, minor: int) -> tuple[Doc, ...]:
    """The documents of `text` as Talos v1.<minor> reads them. Raises Undecodable."""
    found: list[Doc] = []
    seen: set[tuple[str, str]] = set()
    for line, part in _split(text):
        document = _load(part, line, minor)
        if document is None:
            continue
        name = (str(document.get("kind", "")), str(document.get("name", "")))
        if name in seen and name[0]:
            joined = "/".join(filter(None, ("v1alpha1", *name)))
            raise Undecodable(f"duplicate document {joined} is not allowed (line {line})")
        if name in seen:
            raise Undecodable("not expected to have duplicate v1alpha1 config documents")
        seen.add(name)
        found.append(document)
    if not found:
        raise Undecodable("config not found")
    return tuple(found)


def _split(text: str) -> Iterator[tuple[int, str]]:
    """Documents with the line their content starts on."""
    part: list[str] = []
    start = 1
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if line.rstrip() == "---" or line.startswith("--- "):
            yield start, "".join(part)
            part, start = [], number + 1
        else:
            part.append(line)
    yield start, "".join(part)


def _load(part: str, line: int, minor: int) -> Doc | None:
    try:
        value = go_yaml.load(part)
    except go_yaml.DuplicateKey as error:
        raise Undecodable(_duplicate(error, part, line, minor)) from None
    except YAMLError as error:
        raise Undecodable(f"decode error: yaml: {str(error).splitlines()[0]}") from None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Undecodable(f"decode error: yaml: document on line {line} is not a mapping")
    _known(value, line, minor)
    _typed(value, part, line, minor)
    return value


def _duplicate(error: go_yaml.DuplicateKey, part: str, line: int, minor: int) -> str:
    """Talos counts lines from the start of the whole text; only a doubled key says where it was first."""
    mark = error.problem_mark
    again = mark.line if mark is not None else 0
    lines = part.splitlines()
    key = lines[again].split(":")[0] if again < len(lines) else ""
    first = next((n for n, text in enumerate(lines) if text.startswith(f"{key}:")), again)
    problem = f'mapping key "{key.strip()}" already defined at line {line + first}'
    return _construct(f"/v1alpha1/ (line {line})", "", problem, line + again, minor)


def _title(document: Doc, line: int) -> str:
    kind = document.get("kind", "v1alpha1" if "apiVersion" in document else "")
    return f"{document.get('apiVersion', '')}/{kind or 'v1alpha1'}/{document.get('name', '')} (line {line})"


def _known(document: Doc, line: int, minor: int) -> None:
    kind = document.get("kind")
    known = kinds(minor)
    if kind is not None and kind not in known:
        not_registered = f'"{kind}" "{document.get("apiVersion", "")}": not registered'
        where = "" if minor <= 11 else f"error decoding document {_title(document, line)}: "
        raise Undecodable(where + not_registered)
    extra = unknown(document, known[kind] if kind is not None else main_schema(minor))
    if extra is not None:
        where = f"error decoding document {_title(document, line)}"
        raise Undecodable(f"{where}: unknown keys found during decoding:\n{_dump(extra)}")


def _typed(document: Doc, part: str, line: int, minor: int) -> None:
    """Values whose Go type refuses them while decoding: URLs, prefixes, addresses, sizes."""
    kind = str(document.get("kind", ""))
    for value, parse in _parsed_values(document, kind):
        problem = parse(str(value))
        if problem:
            offset = next((n for n, text in enumerate(part.splitlines()) if str(value) in text), 0)
            raise Undecodable(_construct(_title(document, line), kind, problem, line + offset, minor))


def _parsed_values(document: Doc, kind: str) -> Iterator[tuple[Any, Any]]:
    if not kind:
        endpoint = ((document.get("cluster") or {}).get("controlPlane") or {}).get("endpoint")
        if endpoint is not None:
            yield endpoint, _bad_url
        size = (((document.get("machine") or {}).get("install") or {}).get("diskSelector") or {}).get("size")
        if size is not None:
            yield size, _bad_size
    if kind in ("LinkConfig", "VLANConfig", "BondConfig", "BridgeConfig", "DummyLinkConfig"):
        for address in document.get("addresses") or []:
            yield address.get("address", ""), _bad_prefix
        for route in document.get("routes") or []:
            if "gateway" in route:
                yield route["gateway"], _bad_address
    if kind == "ResolverConfig":
        for server in document.get("nameservers") or []:
            yield server.get("address", ""), _bad_address
    if kind == "KubeNetworkConfig":
        for subnet in (*(document.get("podSubnets") or []), *(document.get("serviceSubnets") or [])):
            yield subnet, _bad_prefix


def _bad_url(value: str) -> str | None:
    if value and "://" not in value and ":" in value.split("/")[0]:
        return f'parse "{value}": first path segment in URL cannot contain colon'
    host = urlsplit(value).netloc.rpartition("@")[2]
    if not host.startswith("[") and host.count(":") > 1:
        return f'parse "{value}": invalid port "{host[host.index(":") :]}" after host'
    return None


def _bad_size(value: str) -> str | None:
    number = re.sub(r"^\s*(<=|>=|==|<|>)?\s*", "", value)
    if re.fullmatch(r"\d+(\.\d+)?\s*[kKMGTP]?i?B?", number):
        return None
    return f'failed to parse disk size {value}: strconv.ParseFloat: parsing "": invalid syntax'


def _bad_prefix(value: str) -> str | None:
    if "/" not in value:
        return f"netip.ParsePrefix(\"{value}\"): no '/'"
    return (
        None
        if _parses(ip_interface, value)
        else f'netip.ParsePrefix("{value}"): ParseAddr("{value}"): unable to parse IP'
    )


def _bad_address(value: str) -> str | None:
    if _parses(ip_address, value):
        return None
    stranger = next((c for c in value if c not in "0123456789abcdefABCDEF.:"), None)
    if "." in value and stranger is not None:
        return f'ParseAddr("{value}"): unexpected character (at "{value}")'
    return f'ParseAddr("{value}"): unable to parse IP'


def _parses(parse: Any, value: str) -> bool:
    try:
        parse(value)
    except ValueError:
        return False
    return True


def is_network(value: object) -> bool:
    """Whether the value is a CIDR, host bits allowed."""
    return _parses(lambda v: ip_network(v, strict=False), str(value)) and "/" in str(value)


def _construct(title: str, kind: str, problem: str, line: int, minor: int) -> str:
    go = f"*{_package(kind)}.{kind}V1Alpha1" if kind else "*v1alpha1.Config"
    break_ = " " if minor >= 14 else "\n  "
    where = f"error decoding document {title}: error decoding {kind} to {go}"
    return f"{where}: yaml: construct errors:{break_}line {line}: {problem}"


def _package(kind: str) -> str:
    return "k8s" if kind.startswith("Kube") else "network"


def _dump(value: Any) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None in its class
    yaml.map_indent, yaml.sequence_indent, yaml.sequence_dash_offset = 4, 6, 4
    out = StringIO()
    yaml.dump(value, out)
    return out.getvalue()
