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
    title="The solver and the DNS provider match",
    why="otherwise ACME challenges are never answered, or the DNS provider is never used",
    remedy="set dns01 if and only if the solver is dns01",
)
CRT_002 = Rule(
    "CRT-002",
    ERROR,
    title="The DNS provider configuration is complete",
    why="without these keys cert-manager cannot use the provider, and every order stays pending",
    remedy="add the missing keys",
)
CRT_003 = Rule(
    "CRT-003",
    ERROR,
    title="Wildcard certificates use the DNS-01 challenge",
    why="certificate authorities issue wildcard certificates for DNS-01 challenges only",
    remedy="use the solver dns01",
)
CRT_004 = Rule(
    "CRT-004",
    ERROR,
    title="DNS-01 is used for domains you control",
    why="you cannot create records in this domain, so the challenge always fails",
    remedy="use the solver http01",
)
CRT_005 = Rule(
    "CRT-005",
    ERROR,
    title="Only one wildcard certificate is configured",
    why="an existing wildcard certificate and a requested one are mutually exclusive",
    remedy="set either wildcard or wildcardSecretName",
)
CRT_006 = Rule(
    "CRT-006",
    NOTE,
    title="The issuer is one that the platform provides",
    why="no certificate is signed until you create an issuer of that name",
    remedy="use letsencrypt-prod, letsencrypt-stage or selfsigned-cluster-issuer, or create the issuer",
)
CRT_007 = Rule(
    "CRT-007",
    NOTE,
    title="Browsers trust the certificates",
    why="browsers show a warning on every page",
    remedy="use letsencrypt-prod with your own domain",
)
CRT_008 = Rule(
    "CRT-008",
    NOTE,
    title="Port 80 is reachable from the internet",
    why="the CA fetches the HTTP-01 challenge from the internet; behind a router this fails unless ports 80 "
    "and 443 are forwarded",
    remedy="forward both ports, or use dns01",
)
CRT_009 = Rule(
    "CRT-009",
    WARNING,
    title="Production certificates are requested for your own domain",
    why="all users of a shared domain share one weekly certificate quota; once it is used up, orders are "
    "refused for days",
    remedy="use letsencrypt-stage, or your own domain",
)
CRT_010 = Rule(
    "CRT-010",
    ERROR,
    title="Issuer and secret names are valid",
    why="Kubernetes rejects objects with an invalid name",
    remedy="use lowercase letters, digits, dashes and dots",
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
        yield CRT_001.at(path, problem="the solver is dns01, but no DNS provider is configured", fix=fix)
    if certificates.solver != "dns01" and certificates.dns01 is not None:
        problem = f"a DNS provider is configured, but the solver is {certificates.solver}"
        command = config_set("cozystack:publishing.certificates.solver", "dns01")
        path = site.where("publishing", "certificates", "dns01")
        yield CRT_001.at(path, problem=problem, fix="set the solver to dns01, or remove the provider", command=command)
    if certificates.solver == "dns01" and is_ip_domain(site.publishing.host):
        problem = f"you cannot create DNS records below {short(site.publishing.host)}"
        yield CRT_004.at(path, problem=problem, fix="use the solver http01")


def _provider(site: Site) -> Iterator[Finding]:
    dns01 = site.publishing.certificates.dns01
    if dns01 is None:
        return
    path = site.where("publishing", "certificates", "dns01")
    if "provider" not in dns01.model_fields_set:
        fix = "add `provider:` with cloudflare, route53, digitalocean or rfc2136"
        yield CRT_002.at(path, problem="the DNS provider is missing", fix=fix)
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
        yield CRT_002.at(path, problem=f"{dns01.provider} also needs {', '.join(missing)}", fix="add the missing keys")
    if dns01.nameserver and url_in(f"https://{dns01.nameserver}", port_needed=False).problem is not None:
        where = site.where("publishing", "certificates", "dns01", "nameserver")
        yield CRT_002.at(
            where,
            problem=f"`{short(dns01.nameserver)}` is not in the form host:port",
            fix="write, for example, ns1.example.org:53",
        )


def _wildcard(site: Site) -> Iterator[Finding]:
    certificates = site.publishing.certificates
    path = site.where("publishing", "certificates", "wildcard")
    if certificates.wildcard and certificates.solver == "http01" and certificates.issuer.startswith("letsencrypt"):
        problem = "a wildcard certificate is requested, but the solver is http01"
        yield CRT_003.at(path, problem=problem, fix="use the solver dns01, or set wildcard to false")
    if certificates.wildcard and certificates.wildcard_secret_name:
        problem = "both an existing wildcard certificate and a new one are configured"
        yield CRT_005.at(path, problem=problem, fix="set either wildcard or wildcardSecretName")


def _issuer(site: Site) -> Iterator[Finding]:
    certificates = site.publishing.certificates
    issuer, path = certificates.issuer, site.where("publishing", "certificates", "issuer")
    names = [("issuer", issuer), ("wildcardSecretName", certificates.wildcard_secret_name)]
    if certificates.dns01 is not None:
        names.append(("dns01", certificates.dns01.secret_name))
    for key, name in names:
        if name is not None and domain_problem(name) is not None:
            where = site.where("publishing", "certificates", key)
            yield CRT_010.at(
                where, problem=f"`{short(name)}` is not a valid name: {domain_problem(name)}", fix="correct the name"
            )
    if issuer not in _ISSUERS and domain_problem(issuer) is None:
        yield CRT_006.at(
            path,
            problem=f"the platform does not provide an issuer called {short(issuer)}",
            fix="create the issuer yourself, or use one that the platform provides",
        )
    if issuer in {"selfsigned-cluster-issuer", "letsencrypt-stage"}:
        yield CRT_007.at(
            path,
            problem=f"browsers do not trust certificates from {issuer}",
            fix="switch to letsencrypt-prod before users need the site",
        )
    if issuer == "letsencrypt-prod" and is_ip_domain(site.publishing.host):
        problem = f"{short(site.publishing.host)} shares its certificate quota with every other user of that domain"
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
        problem = "all external addresses are private, but certificates are validated over HTTP"
        yield CRT_008.at(path, problem=problem, fix="forward ports 80 and 443 to these addresses, or use dns01")
