"""Stages that need no component around them: each is declared with what it takes from the stack file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from pulumi import Output, ResourceOptions

from cozystack_iac import summary
from cozystack_iac.components.access import Access
from cozystack_iac.platform import package, tenant, values
from cozystack_iac.releases import Release
from cozystack_iac.rules.reachability import skipped
from cozystack_iac.settings import Site
from cozystack_iac.stages.base import later
from cozystack_iac.stages.disk_ledger import DiskLedger, LedgerInputs
from cozystack_iac.stages.install_record import InstallRecord, RecordInputs
from cozystack_iac.stages.install_started import InstallStarted, StartedInputs
from cozystack_iac.stages.kubeconfig_file import FileInputs, KubeconfigFile
from cozystack_iac.stages.platform_ready import PlatformInputs, PlatformReady
from cozystack_iac.stages.post_verify import PostVerify, PostVerifyInputs
from cozystack_iac.stages.reachability import Reachability, ReachInputs
from cozystack_iac.stages.sign_on import SignOn, SignOnInputs
from cozystack_iac.talos.inventory import storing_machines
from cozystack_iac.timeline import Took

RECORD_S = 60.0  # an API server that is away for longer stops more than a record


def kubeconfig_file(name: str, path: str, access: Access, opts: ResourceOptions) -> KubeconfigFile:
    return KubeconfigFile(name, FileInputs.model_construct(kubeconfig=later(access.kubeconfig), path=path), opts)


def install_started(name: str, site: Site, access: Access, opts: ResourceOptions) -> InstallStarted:
    inputs = StartedInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        versions=versions(site),
        revision=summary.revision(site),
        deadline_s=RECORD_S,
    )
    return InstallStarted(name, inputs, opts)


def disk_ledger(name: str, site: Site, access: Access, opts: ResourceOptions) -> DiskLedger:
    inputs = LedgerInputs.model_construct(
        disks={node.name: list(node.data_disks) for node in site.storage_nodes},
        places={node.name: site.where("nodes", index) for index, node in enumerate(site.nodes) if node.data_disks},
        approved={node: list(identities) for node, identities in site.storage.approved_disks.items()},
        machines=list(storing_machines(site)),
        checks=site.checks,
        client_configuration=later(access.client),
        deadline_s=site.waits.probe.total_seconds(),
    )
    return DiskLedger(name, inputs, opts)


def sign_on(name: str, site: Site, release: Release, access: Access, opts: ResourceOptions) -> SignOn:
    wanted = package.authentication(site, release)
    inputs = SignOnInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        authentication=wanted,
        wanted=dict(values.expected({"authentication": wanted}, "default", release)),
        allowed=sorted(site.allowed),
        deadline_s=site.waits.package.total_seconds(),
    )
    return SignOn(name, inputs, opts)


def platform_ready(
    name: str, site: Site, release: Release, access: Access, opts: ResourceOptions, *, first_of_two: bool = False
) -> PlatformReady:
    """`first_of_two`: OIDC is switched on after this wait, and the platform is waited for once more."""
    asked = [package.platform_values(site, release), tenant.root_spec(site, release)]
    if release.oidc_later and not first_of_two:
        asked.append(package.authentication(site, release))
    inputs = PlatformInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        variant=site.platform_variant,
        nodes=[node.name for node in site.storage_nodes],
        pool=site.storage.pool,
        zpool=site.storage.zpool,
        # Credentials are part of what is asked for: only a digest may leave here in plain.
        revision=hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16],
        first_of_two=first_of_two,
        settle_s=site.waits.settle.total_seconds(),
        deadline_s=site.waits.platform.total_seconds(),
    )
    return PlatformReady(name, inputs, opts)


def post_verify(name: str, site: Site, access: Access, opts: ResourceOptions) -> PostVerify:
    inputs = PostVerifyInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        host=site.publishing.host,
        ingress=site.tenant.ingress,
        addresses=list(site.external_ips),
        load_balancer=site.publishing.load_balancer,
        sign_on=site.access.oidc,
        revision=summary.revision(site),
        deadline_s=site.waits.verify.total_seconds(),
    )
    return PostVerify(name, inputs, opts)


def reachability(name: str, site: Site, access: Access, opts: ResourceOptions) -> Reachability:
    inputs = ReachInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        host=site.publishing.host,
        addresses=list(site.external_ips),
        public=[node.public_address for node in site.nodes if node.public_address],
        exposed=list(site.publishing.exposed),
        oidc=site.access.oidc,
        resolver=site.resolver,
        resolvers=list(site.publishing.resolvers),
        port=site.https_port,
        checks=site.checks,
        skipped=skipped(site),
        deadline_s=site.waits.reachability.total_seconds(),
    )
    return Reachability(name, inputs, opts)


def install_record(
    name: str, site: Site, access: Access, links: Mapping[str, Output[Any]], opts: ResourceOptions
) -> InstallRecord:
    """`links`: what every other stage has to say about its run."""
    took: Mapping[str, Output[Took | None]] = links
    inputs = RecordInputs.model_construct(
        kubeconfig=later(access.kubeconfig),
        links={stage: later(run) for stage, run in took.items()},
        revision=summary.revision(site),
        summary=summary.markdown(site, versions(site)["cozystack-iac"]),
        deadline_s=RECORD_S,
    )
    return InstallRecord(name, inputs, opts)


def versions(site: Site) -> dict[str, str]:
    return summary.versions(site, metadata.version("cozystack-iac"))
