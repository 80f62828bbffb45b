from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from cozystack_iac.talos.api import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InstallArtifactsSource(_message.Message):
    __slots__ = ("image_name",)
    IMAGE_NAME_FIELD_NUMBER: _ClassVar[int]
    image_name: str
    def __init__(self, image_name: _Optional[str] = ...) -> None: ...

class InstallDestination(_message.Message):
    __slots__ = ("disk",)
    DISK_FIELD_NUMBER: _ClassVar[int]
    disk: str
    def __init__(self, disk: _Optional[str] = ...) -> None: ...

class LifecycleServiceInstallProgress(_message.Message):
    __slots__ = ("message", "exit_code")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    message: str
    exit_code: int
    def __init__(self, message: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class LifecycleServiceInstallRequest(_message.Message):
    __slots__ = ("containerd", "source", "destination")
    CONTAINERD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    containerd: _common_pb2.ContainerdInstance
    source: InstallArtifactsSource
    destination: InstallDestination
    def __init__(self, containerd: _Optional[_Union[_common_pb2.ContainerdInstance, _Mapping]] = ..., source: _Optional[_Union[InstallArtifactsSource, _Mapping]] = ..., destination: _Optional[_Union[InstallDestination, _Mapping]] = ...) -> None: ...

class LifecycleServiceInstallResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: LifecycleServiceInstallProgress
    def __init__(self, progress: _Optional[_Union[LifecycleServiceInstallProgress, _Mapping]] = ...) -> None: ...

class LifecycleServiceUpgradeRequest(_message.Message):
    __slots__ = ("containerd", "source")
    CONTAINERD_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    containerd: _common_pb2.ContainerdInstance
    source: InstallArtifactsSource
    def __init__(self, containerd: _Optional[_Union[_common_pb2.ContainerdInstance, _Mapping]] = ..., source: _Optional[_Union[InstallArtifactsSource, _Mapping]] = ...) -> None: ...

class LifecycleServiceUpgradeResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: LifecycleServiceInstallProgress
    def __init__(self, progress: _Optional[_Union[LifecycleServiceInstallProgress, _Mapping]] = ...) -> None: ...

class ImageServiceListRequest(_message.Message):
    __slots__ = ("containerd",)
    CONTAINERD_FIELD_NUMBER: _ClassVar[int]
    containerd: _common_pb2.ContainerdInstance
    def __init__(self, containerd: _Optional[_Union[_common_pb2.ContainerdInstance, _Mapping]] = ...) -> None: ...

class ImageServiceListResponse(_message.Message):
    __slots__ = ("name", "digest", "size", "created_at", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    size: int
    created_at: _timestamp_pb2.Timestamp
    labels: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., size: _Optional[int] = ..., created_at: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ImageServicePullRequest(_message.Message):
    __slots__ = ("containerd", "image_ref")
    CONTAINERD_FIELD_NUMBER: _ClassVar[int]
    IMAGE_REF_FIELD_NUMBER: _ClassVar[int]
    containerd: _common_pb2.ContainerdInstance
    image_ref: str
    def __init__(self, containerd: _Optional[_Union[_common_pb2.ContainerdInstance, _Mapping]] = ..., image_ref: _Optional[str] = ...) -> None: ...

class ImageServicePullLayerProgress(_message.Message):
    __slots__ = ("status", "elapsed", "offset", "total")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DOWNLOADING: _ClassVar[ImageServicePullLayerProgress.Status]
        DOWNLOAD_COMPLETE: _ClassVar[ImageServicePullLayerProgress.Status]
        EXTRACTING: _ClassVar[ImageServicePullLayerProgress.Status]
        EXTRACT_COMPLETE: _ClassVar[ImageServicePullLayerProgress.Status]
        ALREADY_EXISTS: _ClassVar[ImageServicePullLayerProgress.Status]
    DOWNLOADING: ImageServicePullLayerProgress.Status
    DOWNLOAD_COMPLETE: ImageServicePullLayerProgress.Status
    EXTRACTING: ImageServicePullLayerProgress.Status
    EXTRACT_COMPLETE: ImageServicePullLayerProgress.Status
    ALREADY_EXISTS: ImageServicePullLayerProgress.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    status: ImageServicePullLayerProgress.Status
    elapsed: _duration_pb2.Duration
    offset: int
    total: int
    def __init__(self, status: _Optional[_Union[ImageServicePullLayerProgress.Status, str]] = ..., elapsed: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., offset: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class ImageServicePullProgress(_message.Message):
    __slots__ = ("layer_id", "progress")
    LAYER_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    layer_id: str
    progress: ImageServicePullLayerProgress
    def __init__(self, layer_id: _Optional[str] = ..., progress: _Optional[_Union[ImageServicePullLayerProgress, _Mapping]] = ...) -> None: ...

class ImageServicePullResponse(_message.Message):
    __slots__ = ("name", "pull_progress")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PULL_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    pull_progress: ImageServicePullProgress
    def __init__(self, name: _Optional[str] = ..., pull_progress: _Optional[_Union[ImageServicePullProgress, _Mapping]] = ...) -> None: ...
