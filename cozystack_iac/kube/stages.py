"""Stages on the Kubernetes API that belong to no single component: nodes registered, names unclaimed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, Ref, Unreachable
from cozystack_iac.kube.nodes import NodeStanding, NodeState, standings, summary
from cozystack_iac.kube.ownership import foreign_owner
from cozystack_iac.stage import Known, Progress, Properties, StageFailed, StageProvider, StageResource, budget

NODES = Ref("v1", "nodes")


class RegisteredInputs(Properties):
    kubeconfig: str = Field(repr=False)
    nodes: dict[str, str]  # name -> internal address from the inventory
    deadline_s: float


class RegisteredOutputs(Properties):
    registered: list[str]


class NodesRegisteredProvider(StageProvider[RegisteredInputs, RegisteredOutputs]):
    """The API server answers and every node of the inventory is a Node with its own address, CNI or not.

    Waiting for Ready would never end here: the CNI is part of the platform that is installed next.
    """

    inputs = RegisteredInputs
    outputs = RegisteredOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"nodes"})

    async def establish(self, inputs: RegisteredInputs, progress: Progress) -> RegisteredOutputs:
        seen: tuple[NodeStanding, ...] = standings(inputs.nodes, {})
        progress.say(f"waiting for the Kubernetes API and {len(inputs.nodes)} nodes")

        def expired() -> StageFailed:
            return StageFailed(
                f"Not all nodes joined Kubernetes (timed out after {inputs.deadline_s:.0f} s).",
                details={node.name: f"{node.state.value} {node.detail}".strip() for node in seen},
                means="the machines are configured and etcd is running; no data was lost",
                next_step="check the kubelet on the missing nodes, then run `pulumi up` again: it continues from here",
            )

        async with budget(inputs.deadline_s, expired), Kube.connect(inputs.kubeconfig) as kube:
            async for snapshot in kube.watch(NODES):
                objects = {name: node for (_, name), node in (snapshot.objects or {}).items()}
                seen = standings(inputs.nodes, objects)
                progress.say(summary(seen))
                if all(node.passes_before_cni for node in seen):
                    _refuse_foreign_addresses(inputs.nodes, seen)
                    return RegisteredOutputs(registered=[node.name for node in seen])
        raise expired()

    async def revise(
        self, inputs: RegisteredInputs, known: Known[RegisteredInputs, RegisteredOutputs], progress: Progress
    ) -> RegisteredOutputs:
        """Only nodes that are new are waited for: one that is away today must not keep others from joining."""
        before = known.inputs.nodes if known.inputs is not None else {}
        fresh = {name: address for name, address in inputs.nodes.items() if before.get(name) != address}
        if fresh:
            await self.establish(inputs.model_copy(update={"nodes": fresh}), progress)
        return RegisteredOutputs(registered=list(inputs.nodes))

    async def observe(self, inputs: RegisteredInputs, outputs: RegisteredOutputs) -> RegisteredOutputs | None:
        async with Kube.connect(inputs.kubeconfig) as kube:
            objects = {str(o["metadata"]["name"]): o for o in await _objects(kube, NODES)}
        present = [n.name for n in standings(inputs.nodes, objects) if n.state is not NodeState.MISSING]
        return RegisteredOutputs(registered=present)


class NodesRegistered(StageResource, module="cozystack", name="NodesRegistered"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(NodesRegisteredProvider(), name, inputs, opts)


def _refuse_foreign_addresses(wanted: Mapping[str, str], seen: tuple[NodeStanding, ...]) -> None:
    """A node that registers with another address (the VIP, say) breaks later in ways that are hard to trace back."""
    wrong = {n.name: ", ".join(n.addresses) for n in seen if n.addresses and wanted[n.name] not in n.addresses}
    if wrong:
        raise StageFailed(
            f"{len(wrong)} node(s) registered with the wrong address.",
            details={name: f"registered {got}, but the stack file has {wanted[name]}" for name, got in wrong.items()},
            means="the kubelet picked another subnet (often the VIP's), so pods and storage would use the "
            "wrong address",
            next_step="correct `internalAddress` or the link's subnet in the stack file, then run `pulumi up` again",
        )


class Claim(Properties):
    """One object that is about to be created. `owner`: annotations that mark it as ours when it is there already."""

    api_version: str
    plural: str
    name: str
    namespace: str | None = None
    owner: dict[str, str]


class UnclaimedInputs(Properties):
    kubeconfig: str = Field(repr=False)
    claims: list[Claim]
    next_step: str
    deadline_s: float


class UnclaimedOutputs(Properties):
    free: list[str]


class UnclaimedProvider(StageProvider[UnclaimedInputs, UnclaimedOutputs]):
    """Look before creating: none of these names belongs to somebody else.

    Depending on its version the Kubernetes plugin either takes over an object that exists or fails; neither is a decision.
    """

    inputs = UnclaimedInputs
    outputs = UnclaimedOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"claims"})

    async def establish(self, inputs: UnclaimedInputs, progress: Progress) -> UnclaimedOutputs:
        foreign: dict[str, str] = {}
        async with Kube.connect(inputs.kubeconfig, deadline_s=inputs.deadline_s) as kube:
            for claim in inputs.claims:
                ref = Ref(claim.api_version, claim.plural, claim.namespace, claim.name)
                try:
                    found = await kube.find(ref)
                except KubeError as error:
                    raise _unknown(ref, error) from None
                if found and (why := foreign_owner(found, claim.owner)):
                    foreign[str(ref)] = why
        if foreign:
            raise StageFailed(
                f"{len(foreign)} object(s) that this stack would create already exist and belong to someone else.",
                details=foreign,
                means="taking them over could break their owner's setup, so nothing was changed",
                next_step=inputs.next_step,
            )
        return UnclaimedOutputs(free=[claim.name for claim in inputs.claims])


class Unclaimed(StageResource, module="cozystack", name="Unclaimed"):
    def __init__(self, name: str, inputs: Mapping[str, Any], opts: Any = None) -> None:
        super().__init__(UnclaimedProvider(), name, inputs, opts)


class Named(Properties):
    """One object by name."""

    api_version: str
    plural: str
    name: str
    namespace: str | None = None


class PresentInputs(Properties):
    kubeconfig: str = Field(repr=False)
    objects: list[Named]
    next_step: str
    deadline_s: float


class PresentOutputs(Properties):
    found: list[str]


class PresentProvider(StageProvider[PresentInputs, PresentOutputs]):
    """Objects that somebody else made and this stack relies on are there. They are never changed.

    States of earlier versions hold one for storage classes, and have to load.
    """

    inputs = PresentInputs
    outputs = PresentOutputs
    secret = frozenset({"kubeconfig"})
    matters = frozenset({"objects"})

    async def establish(self, inputs: PresentInputs, progress: Progress) -> PresentOutputs:
        missing: dict[str, str] = {}
        async with Kube.connect(inputs.kubeconfig, deadline_s=inputs.deadline_s) as kube:
            for each in inputs.objects:
                ref = Ref(each.api_version, each.plural, each.namespace, each.name)
                try:
                    if await kube.find(ref) is None:
                        missing[str(ref)] = "does not exist"
                except KubeError as error:
                    raise _unknown(ref, error) from None
        if missing:
            raise StageFailed(
                f"{len(missing)} object(s) that this stack should use do not exist.",
                details=missing,
                means="claims that refer to them would stay Pending; nothing was changed",
                next_step=inputs.next_step,
            )
        return PresentOutputs(found=[each.name for each in inputs.objects])


def _unknown(ref: Ref, error: KubeError) -> StageFailed:
    return StageFailed(
        f"It cannot be determined whether {ref} already exists.",
        details={"answer": str(error)},
        means="nothing was changed, because this could damage existing objects",
        next_step="check that the API server is reachable from here, then run `pulumi up` again",
    )


async def _objects(kube: Kube, ref: Ref) -> list[dict[str, Any]]:
    try:
        return await kube.objects(ref)
    except Unreachable as error:
        raise _unknown(ref, error) from None
