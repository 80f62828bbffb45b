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
    title="Every registry mirror has a registry name and endpoints",
    why="the machine never uses the mirror, or has nowhere to pull from",
    remedy="write `mirrors: {docker.io: {endpoints: [https://mirror.example.org]}}`",
)
REG_002 = Rule(
    "REG-002",
    WARNING,
    title="Registry certificates are verified",
    why="anyone on the path could serve other images, which then run with full privileges",
    remedy="add the CA certificate to proxy.trustedRoots instead",
    overridable=True,
)
REG_003 = Rule(
    "REG-003",
    ERROR,
    title="Registry credentials are complete",
    why="the registry rejects incomplete credentials at the first pull",
    remedy="set username and password, with the password as a secret",
)
REG_004 = Rule(
    "REG-004",
    ERROR,
    title="Proxies are URLs",
    why="the machine cannot pull its installer image, so the install does not start",
    remedy="write http://proxy.example.org:3128",
)
REG_005 = Rule(
    "REG-005",
    ERROR,
    title="Proxy exceptions are hosts, domains or CIDRs",
    why="an entry that cannot be parsed is ignored, and its traffic goes through the proxy",
    remedy="write a host, .domain, or a CIDR",
)
REG_006 = Rule(
    "REG-006",
    WARNING,
    title="The proxy also covers https",
    why="images are pulled over https, so a proxy for http alone is not used for them",
    remedy="set proxy.https",
)
REG_007 = Rule(
    "REG-007",
    ERROR,
    title="Trusted roots are valid CA certificates",
    why="image pulls through the proxy fail with an unknown authority error",
    remedy="use the current CA certificate in PEM format",
)
REG_008 = Rule(
    "REG-008",
    ERROR,
    title="Trusted roots contain no private keys",
    why="the text is sent to every machine in plain text",
    remedy="remove the private key and replace it, since it has been exposed in a file; only certificates belong here",
)
REG_009 = Rule(
    "REG-009",
    NOTE,
    title="Docker Hub has a mirror",
    why="from 1.4 on, a chart hook pulls docker.io/alpine/k8s before the network is up; rate limits or a "
    "missing route to docker.io stall the install",
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
            problem = f"`{short(name)}` is not a valid registry: {problem}"
            yield REG_001.at(site.where(*steps), problem=problem, fix="write a host name such as docker.io")
        if not mirror.endpoints and not site.partly_unread(*steps):
            problem = f"the mirror of {short(name)} has no endpoints"
            yield REG_001.at(site.where(*steps), problem=problem, fix="add `endpoints`")
        for index, endpoint in enumerate(mirror.endpoints):
            url = url_in(endpoint, ("https", "http"), path=True, port_needed=False)
            if url.problem is not None and not site.unread(*steps, "endpoints", index):
                path = site.where(*steps, "endpoints", index)
                # The URL itself is not shown: it may carry a password.
                yield REG_001.at(
                    path,
                    problem=f"a mirror of {short(name)} is not a valid URL: {url.problem}",
                    fix="write https://host",
                )
    if registries.mirrors and "docker.io" not in registries.mirrors and "*" not in registries.mirrors:
        path = site.where("network", "registries", "mirrors")
        yield REG_009.at(path, problem="docker.io has no mirror", fix="add one if rate limits are likely to affect you")


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
            yield REG_002.at(path, problem=problem, fix="add its CA certificate to proxy.trustedRoots")
        auth = config.auth
        if auth is None or site.partly_unread(*steps, "auth"):
            continue
        if bool(auth.username.strip()) != bool(auth.password.get_secret_value().strip()):
            missing = "password" if auth.username.strip() else "username"
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
                    path,
                    problem=f"the {key} proxy is not a valid URL: {url.problem}",
                    fix="write http://proxy.example.org:3128",
                )
    if proxy.http and not proxy.https:
        path = site.where("network", "proxy")
        yield REG_006.at(path, problem="a proxy is set for http only", fix="set proxy.https, usually to the same URL")
    for index, entry in enumerate(proxy.no_proxy):
        if not _is_exception(entry) and not site.unread("network", "proxy", "noProxy", index):
            path = site.where("network", "proxy", "noProxy", index)
            problem = f"`{short(entry)}` is not a host, domain or CIDR"
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
        yield REG_008.at(
            path,
            problem="the text contains a private key",
            fix="remove the private key from the text, and replace the key",
        )
    certificates = [match for match in blocks if match[1] == "CERTIFICATE"]
    if not certificates:
        yield REG_007.at(path, problem="the text contains no certificate", fix="add a certificate in PEM format")
    for number, match in enumerate(certificates, start=1):
        problem, severity = _certificate_problem(match[0], today)
        if problem is not None:
            fix = "replace it with the current CA certificate, or remove it"
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
        return "does not state whether it is a CA certificate", WARNING
    return (None, ERROR) if constraints.ca else ("is not a CA certificate", ERROR)
