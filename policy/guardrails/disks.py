"""Whoever writes disks names them by what they are, and writes once: kernel names change between boots, retries write twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from policy.guardrails.values import Statement, Unknown, Unverified, Violation, at, entries
from policy.guardrails.workloads import STORAGE_NAMESPACE

SATELLITES = re.compile(r"^kubernetes:piraeus\.io/[^:]+:LinstorSatelliteConfiguration(Patch)?$")
JOBS = re.compile(r"^kubernetes:batch/[^:]+:Job(Patch)?$")
BY_ID = "/dev/disk/by-id/"
# Device nodes by kernel or mapper name; `byId=…`, `serial=…` and `wwid=…` say what a disk is.
KERNEL_NAME = re.compile(r"(?:^|[\s=])/dev/(?!disk/by-id/)\S+")


def judge(token: str, props: Any) -> Iterator[Statement]:
    if SATELLITES.match(token):
        yield from _satellite(props)
    elif JOBS.match(token) and at(props, "metadata", "namespace") == STORAGE_NAMESPACE:
        yield from _job(props)


def _satellite(props: Any) -> Iterator[Statement]:
    title = f"LinstorSatelliteConfiguration {at(props, 'metadata', 'name')}"
    for pool in entries(at(props, "spec", "storagePools")):
        for device in entries(pool if isinstance(pool, Unknown) else at(pool, "source", "hostDevices")):
            if isinstance(device, Unknown):
                yield Unverified(f"{title}: {device.path} is not known yet")
            elif not str(device).startswith(BY_ID):
                yield Violation(
                    f"{title} passes LINSTOR {device}, which may be a different disk after a reboot. Use "
                    f"a link in {BY_ID}."
                )


def _job(props: Any) -> Iterator[Statement]:
    title = f"Job {STORAGE_NAMESPACE}/{at(props, 'metadata', 'name')}"
    retries, restarts = at(props, "spec", "backoffLimit"), at(props, "spec", "template", "spec", "restartPolicy")
    for value, wanted, field in ((retries, 0, "backoffLimit"), (restarts, "Never", "restartPolicy")):
        if isinstance(value, Unknown):
            yield Unverified(f"{title}: {value.path} is not known yet")
        elif value != wanted:
            yield Violation(f"{title} has {field} {value}, so a second attempt could write twice. Set it to {wanted}.")
    for container in entries(at(props, "spec", "template", "spec", "containers")):
        for variable in entries(container if isinstance(container, Unknown) else at(container, "env")):
            value = variable if isinstance(variable, Unknown) else at(variable, "value")
            if isinstance(value, Unknown):
                yield Unverified(f"{title}: {value.path} is not known yet")
            elif isinstance(value, str) and (found := KERNEL_NAME.search(value)):
                yield Violation(
                    f"{title} uses the disk {found[0].strip(' =')}, which may be a different one after a "
                    "reboot. Identify it by serial, wwid or byId."
                )
