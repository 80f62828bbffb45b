"""A state names the providers of its resources by module; every name that was ever written must still lead to one."""

import pickle
from importlib import import_module

import pytest

from cozystack_iac.stage import StageProvider

# Only ever added to: whoever moves a provider leaves its old name behind.
WRITTEN = """\
cozystack_iac.kube.kubeconfig_file KubeconfigFileProvider
cozystack_iac.kube.stages NodesRegisteredProvider
cozystack_iac.kube.stages PresentProvider
cozystack_iac.kube.stages UnclaimedProvider
cozystack_iac.platform.claim_stage PlatformClaimProvider
cozystack_iac.platform.hook_stage InstallerHookProvider
cozystack_iac.platform.record_stages InstallRecordProvider
cozystack_iac.platform.record_stages InstallStartedProvider
cozystack_iac.platform.sign_on SignOnProvider
cozystack_iac.platform.stages OperatorReadyProvider
cozystack_iac.platform.stages RootTenantPatchProvider
cozystack_iac.platform.values_stage PlatformValuesProvider
cozystack_iac.reachability.stages ReachabilityProvider
cozystack_iac.readiness.postverify_stages PostVerifyProvider
cozystack_iac.readiness.stages PlatformReadyProvider
cozystack_iac.readiness.stages ReachabilityProvider
cozystack_iac.storage.class_stages ClassesFitProvider
cozystack_iac.storage.device_stages DevicesFitProvider
cozystack_iac.storage.ledger_stages DiskLedgerProvider
cozystack_iac.storage.linstor_stages LinstorReadyProvider
cozystack_iac.storage.linstor_stages PoolsRegisteredProvider
cozystack_iac.storage.stages LinstorReadyProvider
cozystack_iac.storage.stages PoolsRegisteredProvider
cozystack_iac.storage.stages ZpoolsOnlineProvider
cozystack_iac.talos.membership ClusterMembershipProvider
cozystack_iac.talos.stages EtcdBootstrapProvider
cozystack_iac.talos.stages MachineConfigRolloutProvider
cozystack_iac.talos.stages NodeProbeProvider
cozystack_iac.talos.upkeep NodeVerificationProvider
cozystack_iac.talos.upkeep TalosUpgradeProvider
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
