"""A state names the providers of its resources by module; every name that was ever written must still lead to one."""

import pickle
from importlib import import_module

import pytest

from cozystack_iac.stages.base import StageProvider

# Only ever added to: whoever moves a provider leaves its old name behind.
WRITTEN = """\
cozystack_iac.stages.classes_fit ClassesFitProvider
cozystack_iac.stages.cluster_membership ClusterMembershipProvider
cozystack_iac.stages.devices_fit DevicesFitProvider
cozystack_iac.stages.disk_ledger DiskLedgerProvider
cozystack_iac.stages.etcd_bootstrap EtcdBootstrapProvider
cozystack_iac.stages.install_record InstallRecordProvider
cozystack_iac.stages.install_started InstallStartedProvider
cozystack_iac.stages.installer_hook InstallerHookProvider
cozystack_iac.stages.kubeconfig_file KubeconfigFileProvider
cozystack_iac.stages.linstor_ready LinstorReadyProvider
cozystack_iac.stages.machine_config_rollout MachineConfigRolloutProvider
cozystack_iac.stages.node_probe NodeProbeProvider
cozystack_iac.stages.node_verification NodeVerificationProvider
cozystack_iac.stages.nodes_registered NodesRegisteredProvider
cozystack_iac.stages.operator_ready OperatorReadyProvider
cozystack_iac.stages.platform_claim PlatformClaimProvider
cozystack_iac.stages.platform_ready PlatformReadyProvider
cozystack_iac.stages.platform_values PlatformValuesProvider
cozystack_iac.stages.pools_registered PoolsRegisteredProvider
cozystack_iac.stages.post_verify PostVerifyProvider
cozystack_iac.stages.reachability ReachabilityProvider
cozystack_iac.stages.root_tenant_patched RootTenantPatchedProvider
cozystack_iac.stages.sign_on SignOnProvider
cozystack_iac.stages.talos_upgrade TalosUpgradeProvider
cozystack_iac.stages.zpools_online ZpoolsOnlineProvider
""".splitlines()


def providers(kind: type = StageProvider) -> set[type]:
    found: set[type] = set(kind.__subclasses__())
    return found.union(*map(providers, found))


@pytest.mark.parametrize("line", WRITTEN)
def test_a_name_from_any_state_leads_to_its_provider(line: str) -> None:
    module, name = line.split()
    provider = getattr(import_module(module), name)
    assert issubclass(provider, StageProvider)
    assert isinstance(pickle.loads(pickle.dumps(provider())), provider)


def test_every_provider_of_today_is_on_the_list() -> None:
    import_module("cozystack_iac.cluster")
    today = {f"{p.__module__} {p.__name__}" for p in providers() if p.__module__.startswith("cozystack_iac.")}
    assert sorted(today - set(WRITTEN)) == []
