"""The Pulumi program: read the stack file, judge it, build the cluster, export what people need."""

import gc

import pulumi

from cozystack_iac.cluster import CozystackCluster
from cozystack_iac.findings import stop
from cozystack_iac.rules import verdict
from cozystack_iac.settings.load import from_pulumi
from cozystack_iac.talos.profile import pinned


def main() -> None:
    # All that is imported and declared here is kept to the end, and most of it is Pulumi's Kubernetes SDK. Looking for garbage in
    # it took a third of the program's time in a preview, and the last look, when the interpreter ends, half a second.
    gc.disable()
    loaded = pinned(from_pulumi())
    judged = verdict(loaded)
    if judged.blocking or loaded.site is None:
        stop(judged)
    cluster = CozystackCluster(loaded.site.cluster.name, loaded.site, judged)
    for name, value in cluster.outputs.items():
        pulumi.export(name, value)
    gc.freeze()
    gc.enable()


main()
