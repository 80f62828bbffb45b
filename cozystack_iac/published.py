"""What the platform publishes below `publishing.host`: every public name the product speaks of is made here. Pure."""

from collections.abc import Collection

API = "api"  # passed through: TLS ends at the Kubernetes API server, and 443 is its only port
DASHBOARD = "dashboard"
KEYCLOAK = "keycloak"
GRAFANA, ALERTA = "grafana", "alerta"
LINSTOR_GUI = "linstor-gui"
ANY = "*"  # what further hosts and tenants' applications are published by

EXPOSABLE = (API, DASHBOARD, "vm-exportproxy", "cdi-uploadproxy", LINSTOR_GUI)  # names of services read by charts
IGNORED = frozenset({KEYCLOAK})  # accepted upstream as exposed, read by nobody
PROBED = (DASHBOARD, API)  # what a look from outside asks for

_HTTPS = 443


def name(service: str, host: str) -> str:
    """`dashboard.example.org`."""
    return f"{service}.{host}"


def url(service: str, host: str, port: int = _HTTPS) -> str:
    """`https://dashboard.example.org`, with its port where that is another than 443."""
    return f"https://{name(service, host)}" + ("" if port == _HTTPS else f":{port}")


def is_of(public_name: str, service: str) -> bool:
    """Whether a public name is that of `service`, whatever the host."""
    return public_name.startswith(f"{service}.")


def probed(exposed: Collection[str]) -> tuple[str, ...]:
    """Those of the exposed services that are looked at from outside."""
    return tuple(service for service in PROBED if service in exposed)
