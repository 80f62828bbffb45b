"""The Talos part of the main program on the same stack file, for tests that need no platform."""

import pulumi

from cozystack_iac.components.access import Access
from cozystack_iac.components.node_gate import NodeGate
from cozystack_iac.components.talos_bootstrap import TalosBootstrap
from cozystack_iac.components.talos_machine_configs import TalosMachineConfigs
from cozystack_iac.findings import stop
from cozystack_iac.rules import verdict
from cozystack_iac.settings.load import from_pulumi
from cozystack_iac.talos.profile import pinned


def main() -> None:
    loaded = pinned(from_pulumi())
    judged = verdict(loaded)
    if judged.blocking or loaded.site is None:
        stop(judged)
    site = loaded.site
    configs = TalosMachineConfigs("configs", site)
    gate = NodeGate("gate", site, Access(client=configs.client_configuration))
    after = pulumi.ResourceOptions(depends_on=[gate, configs])
    bootstrap = TalosBootstrap("bootstrap", site, configs, after)
    pulumi.export("kubeconfig", bootstrap.kubeconfig)
    pulumi.export("findings", [f"{f.code} {f.path}: {f.problem}" for f in judged.findings])


main()
