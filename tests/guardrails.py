"""What the guardrails say about a resource, asked as the engine asks them."""

from collections.abc import Iterable, Mapping
from typing import Any

from pulumi_policy import PolicyResourceOptions, ResourceValidationArgs
from pulumi_policy.policy import PolicyCustomTimeouts
from pulumi_policy.proxy import unknown_checking_proxy

from policy.guardrails.policies import POLICIES

BY_NAME = {policy.name: policy for policy in POLICIES}


class Said(list[str]):
    """Collects what a policy reports, as the engine would."""

    def report(self, text: str, _urn: str | None = None) -> None:
        self.append(text)


def options(protect: bool = False, secret_outputs: Iterable[str] = ()) -> PolicyResourceOptions:
    return PolicyResourceOptions(protect, [], None, [], PolicyCustomTimeouts(0, 0, 0), list(secret_outputs), None)


def run(name: str, token: str, props: Mapping[str, Any], opts: PolicyResourceOptions | None = None) -> list[str]:
    said = Said()
    args = ResourceValidationArgs(token, unknown_checking_proxy(dict(props)), "urn:x", "x", opts or options(), None)
    BY_NAME[name].validate(args, said.report)
    return said


def judged(name: str, token: str, props: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What the mandatory policy and what its advisory companion say."""
    return run(name, token, props), run(f"{name}-unverified", token, props)
