"""Around the stand-in installer chart: a copy of it stamped with another release, and the work of its labeler hook."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

from cozystack_iac.kube.client import Object
from lab.platform.context import Platform
from lab.platform.objects import kind_ref

CHART = Path(__file__).parents[1] / "charts" / "cozy-installer"
LABELER = "cozy-system-labeler"


def stamped(version: str, target: Path) -> Path:
    """Copy the chart to `target` as the one of this Cozystack release; releases differ in namespace and hook."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(CHART, target)
    chart = target / "Chart.yaml"
    text = chart.read_text(encoding="utf-8")
    chart.write_text(re.sub(r"(?m)^(version|appVersion): .*$", rf"\1: {version}", text), encoding="utf-8")
    return target


class Labeler:
    """KWOK completes the hook's Job without running anything; its one command is carried out here."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    async def run(self) -> None:
        self._platform.hub.store(kind_ref("Job", "kube-system")).on(self._seen)
        await asyncio.Event().wait()

    def _seen(self, before: Object | None, after: Object | None) -> None:
        if before is None and after is not None and after["metadata"]["name"] == LABELER:
            self._platform.hub.spawn(self._label(after))

    async def _label(self, job: Object) -> None:
        arguments = job["spec"]["template"]["spec"]["containers"][0].get("args") or []
        labels = dict(word.split("=", 1) for word in arguments if "=" in word and not word.startswith("-"))
        patch = {"metadata": {"labels": labels}}
        await self._platform.hub.patch(kind_ref("Namespace", name="cozy-system"), patch)
        self._platform.world.log.record("installer", "namespace labelled")
