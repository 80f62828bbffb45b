"""The services of v1.13 and later for installing, upgrading and pulling images. None of them reboots."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from grpclib import Status

from cozystack_iac.talos.api import common_pb2
from cozystack_iac.talos.api import lifecycle_pb2 as api
from lab.machines.call import Call, refuse
from lab.machines.config import image_tag

_LAYER_BYTES = 100 * 2**20
_LAYER = "sha256:3b1f5c0e9d6f"
Progress = api.LifecycleServiceInstallProgress
Layer = api.ImageServicePullLayerProgress


class LifecycleCalls:
    async def Install(
        self, call: Call, request: api.LifecycleServiceInstallRequest
    ) -> AsyncIterator[api.LifecycleServiceInstallResponse]:
        if call.node.state.installed:
            refuse(Status.ALREADY_EXISTS, "machine is already installed")
        async for progress in _write(call, request.source.image_name, "install"):
            yield api.LifecycleServiceInstallResponse(progress=progress)

    async def Upgrade(
        self, call: Call, request: api.LifecycleServiceUpgradeRequest
    ) -> AsyncIterator[api.LifecycleServiceUpgradeResponse]:
        if not call.node.state.installed:
            refuse(Status.FAILED_PRECONDITION, "machine is not installed")
        async for progress in _write(call, request.source.image_name, "upgrade"):
            yield api.LifecycleServiceUpgradeResponse(progress=progress)


async def _write(call: Call, image: str, what: str) -> AsyncIterator[Progress]:
    """The installer's output, then its exit code: a failed installer still ends the stream with OK."""
    node, world = call.node, call.node.world
    if node.writing:
        refuse(Status.FAILED_PRECONDITION, "another installation/upgrade is already in progress")
    if image not in node.state.images:
        refuse(Status.INTERNAL, f'{what} failed: installer image "{image}" not found in containerd store: not found')
    node.writing = True
    try:
        yield Progress(message=f"running Talos installer {image_tag(image)}\n")
        await world.clock.sleep(world.scenario.delays.upgrade)
        node.run_image(image)
        node.say("image written", image=image, by=what)
        yield Progress(exit_code=0)
    finally:
        node.writing = False


class ImageCalls:
    async def List(
        self, call: Call, request: api.ImageServiceListRequest
    ) -> AsyncIterator[api.ImageServiceListResponse]:
        _namespace(request.containerd)
        for image in sorted(call.node.state.images):
            yield api.ImageServiceListResponse(name=image, size=_LAYER_BYTES)

    async def Pull(
        self, call: Call, request: api.ImageServicePullRequest
    ) -> AsyncIterator[api.ImageServicePullResponse]:
        _namespace(request.containerd)
        node, image = call.node, request.image_ref
        if not re.fullmatch(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.+-]+|@sha256:[0-9a-f]{64})", image):
            refuse(Status.NOT_FOUND, f'error pulling image: failed to resolve image "{image}": not found')
        if image in node.state.images:
            yield _layer(Layer.ALREADY_EXISTS, _LAYER_BYTES)
        else:
            yield _layer(Layer.DOWNLOADING, 0)
            await node.world.clock.sleep(node.world.scenario.delays.image_pull)
            for status in (Layer.DOWNLOAD_COMPLETE, Layer.EXTRACTING, Layer.EXTRACT_COMPLETE):
                yield _layer(status, _LAYER_BYTES)
            node.state.images.add(image)
            node.say("image pulled", image=image)
        yield api.ImageServicePullResponse(name=image)


def _namespace(containerd: common_pb2.ContainerdInstance) -> None:
    if containerd.namespace == common_pb2.NS_UNKNOWN:
        refuse(Status.INVALID_ARGUMENT, "invalid containerd namespace NS_UNKNOWN")


def _layer(status: Layer.Status, offset: int) -> api.ImageServicePullResponse:
    progress = Layer(status=status, offset=offset, total=_LAYER_BYTES)
    return api.ImageServicePullResponse(pull_progress=api.ImageServicePullProgress(layer_id=_LAYER, progress=progress))
