"""Public certificates: who signs, how ownership is proven, and whether the two can work for this host."""

from collections.abc import Iterator

from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.rules.endpoints import url_in
from cozystack_iac.rules.publishing import is_ip_domain
from cozystack_iac.rules.spelling import address_in, domain_problem, private
from cozystack_iac.rules.survey import Survey
from cozystack_iac.rules.wording import short
from cozystack_iac.settings import Site
from cozystack_iac.settings.paths import config_set

CRT_001 = Rule(
    "CRT-001",
    ERROR,
    title="solver and DNS provider belong together",
    why="challenges would never be answered, or the provider never be asked",
    remedy="give dns01 with the solver dns01, and only then",
)
CRT_002 = Rule(
    "CRT-002",
    ERROR,
    title="the DNS provider has what it needs",
    why="cert-manager cannot talk to it: every order stays pending",
    remedy="add the missing keys",
)
CRT_003 = Rule(
    "CRT-003",
    ERROR,
    title="wildcard certificates are proven through DNS",
    why="certificate authorities sign wildcards for nothing else",
    remedy="use the solver dns01",
)
CRT_004 = Rule(
    "CRT-004",
    ERROR,
    title="DNS challenges are for zones of your own",
    why="nobody can add records to such a domain",
    remedy="use the solver http01",
)
CRT_005 = Rule(
    "CRT-005",
    ERROR,
    title="there is one wildcard certificate",
    why="an existing certificate and one to be requested exclude each other",
    remedy="keep one of wildcard and wildcardSecretName",
)
CRT_006 = Rule(
    "CRT-006",
    NOTE,
    title="the issuer is one the platform brings",
    why="an issuer of that name has to be made by a person before any certificate is signed",
    remedy="use letsencrypt-prod, letsencrypt-stage or selfsigned-cluster-issuer, or make it",
)
CRT_007 = Rule(
    "CRT-007",
    NOTE,
    title="certificates are trusted by browsers",
    why="browsers warn on every page",
    remedy="use letsencrypt-prod with a domain of your own",
)
CRT_008 = Rule(
    "CRT-008",
    NOTE,
    title="the authority reaches port 80 from the internet",
    why="the challenge is fetched over HTTP from outside; behind a router nothing answers unless ports 80 and 443 are forwarded",
    remedy="forward both ports, or use dns01",
)
CRT_009 = Rule(
    "CRT-009",
    WARNING,
    title="shared domains do not use up their quota",
    why="all users of the domain share one limit of certificates per week: orders are then refused for days",
    remedy="use letsencrypt-stage, or a domain of your own",
)
CRT_010 = Rule(
    "CRT-010",
    ERROR,
    title="names of issuers and secrets are valid",
    why="no object can have that name",
    remedy="use lower-case letters, digits, dashes and dots",
)

_ISSUERS = frozenset({"letsencrypt-prod", "letsencrypt-stage", "selfsigned-cluster-issuer"})


def judge(survey: Survey) -> Iterator[Finding]:
    """All findings about certificates."""
    site = survey.site
    if site.partly_unread("publishing", "certificates"):
        return
    yield from _solver(site)
    yield from _provider(site)
    yield from _wildcard(site)
    yield from _issuer(site)
    yield from _reachable(survey)


def _solver(site: Site) -> Iterator[Finding]:
    certificates = site.publishing.certificates
    path = site.where("publishing", "certificates", "solver")
    if certificates.solver == "dns01" and certificates.dns01 is None and not certificates.wildcard_secret_name:
        fix = "add `dns01: {provider: …}` with cloudflare, route53, digitalocean or rfc2136"
        yield CRT_001.at(path, problem="the solver is dns01, and no provider is given", fix=fix)
    if certificates.solver != "dns01" and certificates.dns01 is not None:
        problem = f"a DNS provider is given, and the solver is {certificates.solver}"
        command = config_set("cozystack:publishing.certificates.solver", "dns01")
        path = site.where("publishing", "certificates", "dns01")
        yield CRT_001.at(path, problem=problem, fix="use the solver dns01, or remove the provider", command=command)
    if certificates.solver == "dns01" and is_ip_domain(site.publishing.host):
        problem = f"nobody can add records below {short(site.publishing.host)}"
        yield CRT_004.at(path, problem=problem, fix="use the solver http01")


def _provider(site: Site) -> Iterator[Finding]:
    dns01 = site.publishing.certificates.dns01
    if dns01 is None:
        return
    path = site.where("publishing", "certificates", "dns01")
    if "provider" not in dns01.model_fields_set:
        fix = "add `provider:` with cloudflare, route53, digitalocean or rfc2136"
        yield CRT_002.at(path, problem="no provider is named", fix=fix)
    needed = {
        "route53": {"region": dns01.region, "accessKeyID": dns01.access_key_id, "secretName": dns01.secret_name},
        "rfc2136": {
            "nameserver": dns01.nameserver,
            "tsigKeyName": dns01.tsig_key_name,
            "secretName": dns01.secret_name,
        },
    }
    missing = [key for key, value in needed.get(dns01.provider, {}).items() if not value]
    if missing:
        yield CRT_002.at(path, problem=f"{dns01.provider} needs {', '.join(missing)}", fix="add the missing keys")
    if dns01.nameserver and url_in(f"https://{dns01.nameserver}", port_needed=False).problem is not None:
        where = site.where("publishing", "certificates", "dns01", "nameserver")
        yield CRT_002.at(where, problem=f"`{short(dns01.nameserver)}` is not host:port", fix="e.g. ns1.example.org:53")


def _wildcard(site: Site) -> Iterator[Finding]:
    certificates = site.publishing.certificates
    path = site.where("publishing", "certificates", "wildcard")
    if certificates.wildcard and certificates.solver == "http01" and certificates.issuer.startswith("letsencrypt"):
        problem = "a wildcard certificate is wanted with the solver http01"
        yield CRT_003.at(path, problem=problem, fix="use the solver dns01, or wildcard: false")
    if certificates.wildcard and certificates.wildcard_secret_name:
        problem = "a wildcard certificate is given and one is to be requested"
        yield CRT_005.at(path, problem=problem, fix="keep one of wildcard and wildcardSecretName")


def _issuer(site: Site) -> Iterator[Finding]:
    certificates = site.publishing.certificates
    issuer, path = certificates.issuer, site.where("publishing", "certificates", "issuer")
    names = [("issuer", issuer), ("wildcardSecretName", certificates.wildcard_secret_name)]
    if certificates.dns01 is not None:
        names.append(("dns01", certificates.dns01.secret_name))
    for key, name in names:
        if name is not None and domain_problem(name) is not None:
            where = site.where("publishing", "certificates", key)
            yield CRT_010.at(where, problem=f"`{short(name)}`: {domain_problem(name)}", fix="correct the name")
    if issuer not in _ISSUERS and domain_problem(issuer) is None:
        yield CRT_006.at(path, problem=f"{short(issuer)} is not brought by the platform", fix="make it by hand")
    if issuer in {"selfsigned-cluster-issuer", "letsencrypt-stage"}:
        yield CRT_007.at(path, problem=f"{issuer} is trusted by no browser", fix="use letsencrypt-prod later")
    if issuer == "letsencrypt-prod" and is_ip_domain(site.publishing.host):
        problem = f"{short(site.publishing.host)} shares its quota with all users of that domain"
        command = config_set("cozystack:publishing.certificates.issuer", "letsencrypt-stage")
        yield CRT_009.at(path, problem=problem, fix="use letsencrypt-stage", command=command)


def _reachable(survey: Survey) -> Iterator[Finding]:
    site = survey.site
    certificates = site.publishing.certificates
    if certificates.solver != "http01" or not certificates.issuer.startswith("letsencrypt"):
        return
    addresses = [address for text in site.external_ips if (address := address_in(text).address) is not None]
    mapped = any(node.public_address for node in site.nodes)
    if addresses and all(private(address) for address in addresses) and not mapped:
        path = site.where("publishing", "certificates")
        problem = "all external addresses are private, and certificates are proven over HTTP"
        yield CRT_008.at(path, problem=problem, fix="forward ports 80 and 443 to them, or use dns01")
