"""Every node of the inventory is a Node with its own address, CNI or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cozystack_iac.kube.client import Kube, KubeError, Ref, Unreachable
from cozystack_iac.kube.nodes import NodeStanding, NodeState, standings, summary
from cozystack_iac.stages.base import Known, Properties, StageProvider, StageResource
from cozystack_iac.waiting import Progress, StageFailed, budget

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


class NodesRegistered(StageResource[RegisteredInputs], provider=NodesRegisteredProvider):
    pass


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
