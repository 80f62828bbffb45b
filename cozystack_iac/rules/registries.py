"""Registries, proxies and additional certificate authorities."""

import re
from collections.abc import Iterator
from datetime import date

from cryptography import x509

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule, Severity
from cozystack_iac.rules.endpoints import url_in
from cozystack_iac.rules.spelling import address_in, domain_problem, host_problem, network_in
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Site

REG_001 = Rule(
    "REG-001",
    ERROR,
    title="mirrors name a registry and where to go instead",
    why="the machine never asks the mirror, or asks nobody",
    remedy="write `mirrors: {docker.io: {endpoints: [https://mirror.example.org]}}`",
)
REG_002 = Rule(
    "REG-002",
    WARNING,
    title="certificates of registries are checked",
    why="whoever is between can hand out other images, and they run with full rights",
    remedy="add the authority to proxy.trustedRoots instead",
    overridable=True,
)
REG_003 = Rule(
    "REG-003",
    ERROR,
    title="credentials are complete",
    why="the registry refuses half of them, at the first pull",
    remedy="give username and password; the password as a secret",
)
REG_004 = Rule(
    "REG-004",
    ERROR,
    title="proxies are URLs",
    why="the machine cannot pull its installer, and stays where it is",
    remedy="write http://proxy.example.org:3128",
)
REG_005 = Rule(
    "REG-005",
    ERROR,
    title="exceptions from the proxy are hosts, domains or ranges",
    why="what cannot be read is sent to the proxy",
    remedy="write a host, .domain, or a CIDR",
)
REG_006 = Rule(
    "REG-006",
    WARNING,
    title="https goes through the proxy too",
    why="images are pulled over https; with a proxy for http alone they are not",
    remedy="set proxy.https",
)
REG_007 = Rule(
    "REG-007",
    ERROR,
    title="trusted roots are valid certificates of authorities",
    why="pulls through the proxy fail with an unknown authority, from the very first on",
    remedy="give the authority's current certificate in PEM form",
)
REG_008 = Rule(
    "REG-008",
    ERROR,
    title="private keys are not handed out",
    why="the text goes to every machine, in the clear",
    remedy="remove the key; only certificates belong here, and replace the key: it has been in a file",
)
REG_009 = Rule(
    "REG-009",
    NOTE,
    title="the first image comes from docker.io",
    why="from 1.4 on the chart's hook pulls docker.io/alpine/k8s before there is a network; registries with limits or without "
    "a way there hold the install up",
    remedy="add docker.io to network.registries.mirrors",
)

_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----.*?-----END \1-----", re.DOTALL)
_PEM_LIMIT = 256 * 1024


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about registries and proxies."""
    yield from _mirrors(survey.site)
    yield from _access(survey.site)
    yield from _proxies(survey.site)
    yield from _roots(survey.site, survey.today)


def _mirrors(site: Site) -> Iterator[Finding]:
    registries = site.network.registries
    for name, mirror in registries.mirrors.items():
        steps = ("network", "registries", "mirrors", name)
        problem = None if name == "*" else _host_and_port_problem(name)
        if problem is not None:
            problem = f"`{short(name)}` is no registry: {problem}"
            yield REG_001.at(site.where(*steps), problem=problem, fix="write a host such as docker.io")
        if not mirror.endpoints and not site.partly_unread(*steps):
            problem = f"the mirror of {short(name)} has no endpoints"
            yield REG_001.at(site.where(*steps), problem=problem, fix="add `endpoints`")
        for index, endpoint in enumerate(mirror.endpoints):
            url = url_in(endpoint, ("https", "http"), path=True, port_needed=False)
            if url.problem is not None and not site.unread(*steps, "endpoints", index):
                path = site.where(*steps, "endpoints", index)
                # The URL itself is not shown: it may carry a password.
                yield REG_001.at(path, problem=f"a mirror of {short(name)}: {url.problem}", fix="write https://host")
    if registries.mirrors and "docker.io" not in registries.mirrors and "*" not in registries.mirrors:
        path = site.where("network", "registries", "mirrors")
        yield REG_009.at(path, problem="docker.io is not among the mirrors", fix="add it when its limits could bite")


def _host_and_port_problem(text: str) -> str | None:
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit():
        return host_problem(host.strip("[]"))
    return host_problem(text)


def _access(site: Site) -> Iterator[Finding]:
    for name, config in site.network.registries.config.items():
        steps = ("network", "registries", "config", name)
        if config.tls.insecure_skip_verify:
            path = site.where(*steps, "tls", "insecureSkipVerify")
            problem = f"any certificate of {short(name)} is accepted"
            yield REG_002.at(path, problem=problem, fix="add its authority to proxy.trustedRoots")
        auth = config.auth
        if auth is None or site.partly_unread(*steps, "auth"):
            continue
        if bool(auth.username.strip()) != bool(auth.password.get_secret_value().strip()):
            missing = "password" if auth.username.strip() else "user name"
            yield REG_003.at(
                site.where(*steps, "auth"), problem=f"{short(name)} has no {missing}", fix=f"add the {missing}"
            )


def _proxies(site: Site) -> Iterator[Finding]:
    proxy = site.network.proxy
    for key, text in (("http", proxy.http), ("https", proxy.https)):
        if text is not None:
            # A user name is allowed here, so it is taken out before the URL is read, and the URL is never shown.
            scheme, separator, rest = text.partition("://")
            url = url_in(scheme + separator + rest.rpartition("@")[2], ("http", "https"), path=True, port_needed=False)
            if url.problem is not None:
                path = site.where("network", "proxy", key)
                yield REG_004.at(
                    path, problem=f"the {key} proxy: {url.problem}", fix="write http://proxy.example.org:3128"
                )
    if proxy.http and not proxy.https:
        path = site.where("network", "proxy")
        yield REG_006.at(path, problem="there is a proxy for http only", fix="set proxy.https, usually to the same")
    for index, entry in enumerate(proxy.no_proxy):
        if not _is_exception(entry) and not site.unread("network", "proxy", "noProxy", index):
            path = site.where("network", "proxy", "noProxy", index)
            problem = f"`{short(entry)}` is neither host, domain nor range"
            yield REG_005.at(path, problem=problem, fix="write a host, .domain, or a CIDR such as 10.0.0.0/8")


def _is_exception(entry: str) -> bool:
    if "/" in entry:
        return network_in(entry).problem is None
    if address_in(entry).address is not None:
        return address_in(entry).problem is None
    return domain_problem(entry.removeprefix("*.").removeprefix(".")) is None


def _roots(site: Site, today: date) -> Iterator[Finding]:
    text = site.network.proxy.trusted_roots
    if text is None:
        return
    path = site.where("network", "proxy", "trustedRoots")
    blocks = list(_PEM.finditer(text[:_PEM_LIMIT]))
    if any("PRIVATE KEY" in match[1] for match in blocks):
        yield REG_008.at(path, problem="there is a private key in it", fix="remove it, and replace the key")
    certificates = [match for match in blocks if match[1] == "CERTIFICATE"]
    if not certificates:
        yield REG_007.at(path, problem="there is no certificate in it", fix="give a certificate in PEM form")
    for number, match in enumerate(certificates, start=1):
        problem, severity = _certificate_problem(match[0], today)
        if problem is not None:
            fix = "replace it by the authority's current certificate, or remove it"
            yield REG_007.at(path, problem=f"certificate {number} {problem}", fix=fix, severity=severity)


def _certificate_problem(pem: str, today: date) -> tuple[str | None, Severity]:
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        until, since = certificate.not_valid_after_utc.date(), certificate.not_valid_before_utc.date()
    except (ValueError, TypeError, x509.UnsupportedGeneralNameType):
        return "cannot be read", ERROR
    if until < today:
        return f"expired on {until}", ERROR
    if since > today:
        return f"is not valid before {since}", ERROR
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return "does not say that it is an authority's", WARNING
    return (None, ERROR) if constraints.ca else ("is not an authority's", ERROR)
