"""The platform as components: API balancer, installer, package, root tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi_kubernetes as kubernetes
from pulumi import ComponentResource, Input, Output, ResourceOptions

from cozystack_iac.platform import installer
from cozystack_iac.platform.claim_stage import PlatformClaim
from cozystack_iac.platform.hook_stage import InstallerHook
from cozystack_iac.platform.stages import OperatorReady, RootTenantPatch
from cozystack_iac.platform.values_stage import PlatformValues
from cozystack_iac.releases import Release

PRISM_CHART = "oci://ghcr.io/lexfrei/charts/extractedprism"
PRISM_VERSION = "0.2.0"
AUTHENTICATION = "spec.components.platform.values.authentication"
PRISM_PORT = 7445  # the port Cilium is told on Talos too, where KubePrism owns it


@dataclass(frozen=True, kw_only=True)
class ExtractedPrismArgs:
    endpoints: Sequence[str]  # host:port of every API server
    deadline_s: float
    chart: str = PRISM_CHART


class ExtractedPrism(ComponentResource):
    """A load balancer for the API server on every node of a generic cluster, so that no single control plane is a cliff.

    Produces: one Helm release (a DaemonSet on every node, waited for). Never on Talos, where KubePrism owns the port.
    On delete: the release is uninstalled.
    """

    def __init__(self, name: str, args: ExtractedPrismArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:platform:ExtractedPrism", name, None, opts)
        self.release = kubernetes.helm.v3.Release(
            f"{name}-release",
            chart=args.chart,
            version=PRISM_VERSION if args.chart.startswith("oci://") else None,
            name="extractedprism",
            namespace="kube-system",
            # The chart's schema wants one string; a list is refused before rendering.
            values={"endpoints": ",".join(args.endpoints), "bindPort": PRISM_PORT},
            timeout=int(args.deadline_s),
            opts=ResourceOptions(parent=self),
        )
        self.register_outputs({"release": self.release.name})


@dataclass(frozen=True, kw_only=True)
class CozyInstallerArgs:
    release: Release
    chart: installer.Chart
    values: Mapping[str, Any]
    claim: Mapping[str, Any]  # what `PlatformClaim` compares with the cluster, see `installer.claim`
    kubeconfig: Input[str]
    deadline_s: float


class CozyInstaller(ComponentResource):
    """Cozystack's operator, as the Helm release its documented upgrades expect.

    Produces: the claim (whose cozy-system it is, and a Helm release that a killed run left half done), the Helm release, a watch
    over the chart's first Job beside it, the wait for an operator at work.
    Waits for: zpools (the caller's dependency). Never adopts what another release owns.
    On delete: the release is uninstalled; the platform's own objects are kept by Cozystack's deletion guard.
    """

    def __init__(self, name: str, args: CozyInstallerArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:platform:CozyInstaller", name, None, opts)
        namespace = args.release.chart_namespace
        common = {"kubeconfig": args.kubeconfig, "deadline_s": args.deadline_s}
        claimed = PlatformClaim(f"{name}-claim", {**args.claim, **common}, ResourceOptions(parent=self))
        after = ResourceOptions(parent=self, depends_on=[claimed])
        if args.release.creates_namespace:
            watched = {"release_namespace": namespace, "version": str(args.release.version)}
            InstallerHook(f"{name}-hook", {**watched, **common}, after)
        self.release = kubernetes.helm.v3.Release(
            f"{name}-release",
            chart=args.chart.reference,
            version=args.chart.version,
            name=installer.RELEASE_NAME,
            namespace=namespace,
            create_namespace=args.release.creates_namespace,
            # Go on from a revision that is marked as failed, by Helm or by the claim; without effect on a first install.
            replace=True,
            values=dict(args.values),
            # A revision that the claim gave back is not what the cluster has: then Helm has to go over it once more.
            description=claimed.output("handed_over").apply(_description),
            timeout=int(args.deadline_s),
            opts=after,
        )
        self.ready = OperatorReady(
            f"{name}-operator",
            {
                "version": str(args.release.version),
                "handed_over": claimed.output("handed_over"),
                **common,
            },
            ResourceOptions(parent=self, depends_on=[self.release]),
        )
        self.register_outputs({"release": self.release.name})


def _description(handed_over: str) -> str:
    return "by cozystack-iac" + (f", after {handed_over}" if handed_over else "")


@dataclass(frozen=True, kw_only=True)
class PlatformPackageArgs:
    package: Mapping[str, Any]
    secret: bool  # whether the values carry credentials
    rendered: Mapping[str, str]  # what the platform has to make of the values, see `platform.values.expected`
    signs_on_later: bool  # the part `authentication` belongs to `SignOn`
    kubeconfig: Input[str]
    deadline_s: float


class PlatformPackage(ComponentResource):
    """The one Package from which the operator derives the whole platform.

    Produces: the Package, and the values that the platform renders from it, read back. The Package's Ready condition only says
    that releases were written; `PlatformReady` judges those.
    Waits for: CRDs and package source (the caller's dependency on `CozyInstaller`).
    On delete: the Package goes, and with it the platform.
    """

    def __init__(self, name: str, args: PlatformPackageArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:platform:PlatformPackage", name, None, opts)
        spec = dict(args.package["spec"])
        self.package = kubernetes.apiextensions.CustomResource(
            f"{name}-package",
            api_version=args.package["apiVersion"],
            kind=args.package["kind"],
            metadata=dict(args.package["metadata"]),
            spec=Output.secret(spec) if args.secret else spec,
            # Left out of the values there, and never taken away: a stack may come from a release that had it in the Package.
            opts=ResourceOptions(parent=self, ignore_changes=[AUTHENTICATION] if args.signs_on_later else None),
        )
        PlatformValues(
            f"{name}-values",
            {"kubeconfig": args.kubeconfig, "wanted": dict(args.rendered), "deadline_s": args.deadline_s},
            ResourceOptions(parent=self, depends_on=[self.package]),
        )
        self.register_outputs({"variant": spec["variant"]})


@dataclass(frozen=True, kw_only=True)
class RootTenantArgs:
    spec: Mapping[str, Any]
    kubeconfig: Input[str]
    deadline_s: float


class RootTenant(ComponentResource):
    """Host and services of the root tenant, patched as soon as it exists.

    Produces: one `RootTenantPatch`. Waits for: the aggregated API and the tenant, inside the patch.
    On delete: nothing; the tenant belongs to the platform.
    """

    def __init__(self, name: str, args: RootTenantArgs, opts: ResourceOptions | None = None) -> None:
        super().__init__("cozystack:platform:RootTenant", name, None, opts)
        self.patch = RootTenantPatch(
            f"{name}-patch",
            {
                "kubeconfig": args.kubeconfig,
                "host": args.spec["host"],
                "ingress": args.spec["ingress"],
                "spec": dict(args.spec),
                "deadline_s": args.deadline_s,
            },
            ResourceOptions(parent=self),
        )
        self.register_outputs({"applied": self.patch.output("applied")})
