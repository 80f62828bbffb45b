"""A support bundle that somebody asks for: with a stack file also its findings, and how machines and names answer now.

Not a part of `bundle`, which every stage can reach: this one looks at machines and names, and so at stages itself. Reads only.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cozystack_iac.diagnosis.bundle import Case, findings_of, look, write
from cozystack_iac.findings import Verdict
from cozystack_iac.kube import kubeconfig as kubeconfigs
from cozystack_iac.reachability import probes
from cozystack_iac.reachability.outcomes import judge_endpoint, targets
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import from_file
from cozystack_iac.talos import inventory
from cozystack_iac.talos.probe import ask_all, who
from cozystack_iac.talos.profile import pinned

PROBE_S = 10.0


async def bundle(kubeconfig: str, folder: Path, stack_file: Path | None) -> Path:
    """The archive's path. Raises OSError when it cannot be written."""
    now = datetime.now(UTC)
    seen, known = await look(kubeconfig, ())
    findings = Verdict() if stack_file is None else findings_of(str(stack_file))
    answers = {} if stack_file is None else await ask(stack_file, kubeconfig)
    return write(folder, Case("", "", seen, now, findings, answers, known))


async def ask(stack_file: Path, kubeconfig: str) -> dict[str, str]:
    """Title -> answers, one a line. A stack file that cannot be read has its findings; there is nothing to ask then."""
    site = pinned(from_file(stack_file)).site
    if site is None:
        return {}
    machines = {} if site.existing else {"machines": await _machines(site)}
    return {**machines, "public names at their addresses": await _names(site, kubeconfig)}


async def _machines(site: Site) -> str:
    """Without a certificate: enough to tell who is there, in which mode, and who is not."""
    answers = await ask_all(inventory.targets(site), deadline_s=PROBE_S)
    return "\n".join(f"{who(answer)}: {answer.standing.value}, {answer.seen}" for answer in answers)


async def _names(site: Site, kubeconfig: str) -> str:
    ca = (kubeconfigs.parse(kubeconfig).ca_pem or b"").decode()
    lines = []
    for target in targets(site.publishing.host, site.publishing.exposed, site.external_ips, site.https_port):
        standing = judge_endpoint(target, await probes.probe(target, ca, deadline_s=PROBE_S))
        lines.append(f"{target}: {standing.words}" + (f" ({standing.means})" if standing.means else ""))
    return "\n".join(lines) or "no external addresses are known"
