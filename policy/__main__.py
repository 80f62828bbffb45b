"""The policy pack: the second, independent line of defence. Prints nothing; its first line of output is the engine's."""

from pulumi_policy import EnforcementLevel, PolicyPack

from policy.guardrails.policies import POLICIES
from policy.watch import end_with_engine

end_with_engine()
PolicyPack(name="cozystack-guardrails", enforcement_level=EnforcementLevel.MANDATORY, policies=list(POLICIES))
