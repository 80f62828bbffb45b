"""The guardrails as policies: each a mandatory one, and an advisory companion that says what could not be judged yet.

The companion exists because a policy that touches an unknown value passes as a whole; the mandatory one never does, it
judges all that is known. What is unknown in a preview is known in `up`, and judged there before anything is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from pulumi_policy import EnforcementLevel, ReportViolation, ResourceValidationArgs, ResourceValidationPolicy, proxy
from pulumi_policy.secret import Secret

from policy.guardrails import disks, secrets, tenant, workloads
from policy.guardrails.values import Statement, Unknown, Unverified, Violation, plain

# How the engine writes a value that it does not know yet, one spelling per type.
_UNKNOWN = frozenset(value for name, value in vars(proxy).items() if re.fullmatch(r"UNKNOWN_\w+_VALUE", name))

Judge = Callable[[ResourceValidationArgs], Iterator[Statement]]


def _reporting(
    judge: Judge, kind: type[Statement], prefix: str
) -> Callable[[ResourceValidationArgs, ReportViolation], None]:
    def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
        for statement in judge(args):
            if isinstance(statement, kind):
                report(prefix + statement.text, None)

    return validate


def guardrail(name: str, description: str, judge: Judge) -> tuple[ResourceValidationPolicy, ResourceValidationPolicy]:
    """A mandatory policy and its companion, `<name>-unverified`."""
    return (
        ResourceValidationPolicy(
            name=name,
            description=description,
            validate=_reporting(judge, Violation, ""),
            enforcement_level=EnforcementLevel.MANDATORY,
        ),
        _companion(name, description, judge),
    )


def _companion(name: str, description: str, judge: Judge) -> ResourceValidationPolicy:
    return ResourceValidationPolicy(
        name=f"{name}-unverified",
        description=f"Not verified yet: {description}",
        validate=_reporting(judge, Unverified, "not verified yet: "),
        enforcement_level=EnforcementLevel.ADVISORY,
    )


class Witness:
    """Remembers which inputs were plain text.

    Only a remediation is shown which values are secret, and the engine asks for remediations right before it asks for
    validation. So this one looks, changes nothing, and lets the validation speak. Where nobody asked it, it has not seen
    anything, and that is "not verified", never fine.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Statement, ...]] = {}

    def look(self, args: ResourceValidationArgs) -> None:
        raw = args.props["__target"]  # the SDK's own way past its proxy, which unwraps secrets
        self._seen[args.urn] = tuple(secrets.exposed(args.resource_type, marked(raw)))

    def judge(self, args: ResourceValidationArgs) -> Iterator[Statement]:
        if args.urn in self._seen:
            yield from self._seen[args.urn]
        elif names := sorted(n for n in args.props if secrets.opens(n) and secrets.guards(args.resource_type)):
            yield Unverified(
                f"the engine did not report which outputs are secret, so {', '.join(names)} cannot be checked"
            )


def marked(value: Any, path: str = "") -> Any:
    """Raw inputs as plain data with `Sealed` and `Unknown` marks; the engine's own `__` keys are left out."""
    if isinstance(value, Secret):
        return secrets.Sealed(None)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes | dict | list):
        return marked(
            cast("Any", value)["__target"], path
        )  # the SDK wraps every nested mapping in the proxy that unwraps secrets
    if isinstance(value, Mapping):
        return {k: marked(v, f"{path}.{k}" if path else k) for k, v in value.items() if not k.startswith("__")}
    if isinstance(value, list):
        return [marked(v, path) for v in value]
    return Unknown(path) if isinstance(value, str) and value in _UNKNOWN else value


def _workloads(args: ResourceValidationArgs) -> Iterator[Statement]:
    return workloads.judge(args.resource_type, plain(args.props))


def _disks(args: ResourceValidationArgs) -> Iterator[Statement]:
    return disks.judge(args.resource_type, plain(args.props))


def _tenant(args: ResourceValidationArgs) -> Iterator[Statement]:
    return tenant.judge(args.resource_type, plain(args.props))


def _protected(args: ResourceValidationArgs) -> Iterator[Statement]:
    return secrets.protected(args.resource_type, args.opts.protect)


def _outputs(args: ResourceValidationArgs) -> Iterator[Statement]:
    return secrets.outputs(args.resource_type, list(args.props), list(args.opts.additional_secret_outputs))


def _secret_inputs() -> tuple[ResourceValidationPolicy, ResourceValidationPolicy]:
    witness, name, description = (
        Witness(),
        "secret-inputs",
        "Credentials for a cluster are secret, never plain text.",
    )
    watching = ResourceValidationPolicy(
        name=name,
        description=description,
        validate=_reporting(witness.judge, Violation, ""),
        remediate=witness.look,
        enforcement_level=EnforcementLevel.REMEDIATE,  # to be shown secrets; violations are reported as mandatory
    )
    return watching, _companion(name, description, witness.judge)


POLICIES: tuple[ResourceValidationPolicy, ...] = (
    *guardrail(
        "no-privileged-workload",
        "Only the storage namespace may run workloads with access to the host.",
        _workloads,
    ),
    *guardrail(
        "disks-by-identity",
        "Disks to be written have stable identities, and are written only once.",
        _disks,
    ),
    *guardrail(
        "root-tenant-host-and-ingress",
        "The host and ingress of the root tenant are set together or not at all.",
        _tenant,
    ),
    guardrail("machine-secrets-protected", "Machine secrets are protected from deletion.", _protected)[0],
    guardrail("secret-outputs", "Outputs with credentials for a cluster are registered as secret.", _outputs)[0],
    *_secret_inputs(),
)
