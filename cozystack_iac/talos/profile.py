"""Which installer image is pinned, and what it carries: reads Cozystack's image profiles, judges what the stack pins.

A profile is read anew in every run and kept nowhere: a pin that somebody moved must not be answered from yesterday. One
that cannot be read is a finding; no version is ever guessed in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cozystack_iac import releases
from cozystack_iac.findings import ERROR, NOTE, WARNING, Finding, Rule
from cozystack_iac.releases import Release, Version
from cozystack_iac.settings import Site
from cozystack_iac.settings.load import Loaded
from cozystack_iac.settings.paths import Step

IN_CHECKOUT = Path("packages/core/talos/images/talos/profiles/installer.yaml")  # of github.com/cozystack/cozystack
FETCH_S = 10.0
_USER = re.compile(r"//[^/@]*@")  # a token in a URL is nothing to print
MOST_BYTES = 256 * 1024  # a profile has some 2 KiB

IMG_001 = Rule(
    "IMG-001",
    ERROR,
    title="The image profile is readable",
    why="it determines the Talos version that machines are configured for and upgraded to",
    remedy="make the file or URL readable, or use the release's image: talos.image: {fromRelease: true}",
)
IMG_002 = Rule(
    "IMG-002",
    WARNING,
    title="The pinned image is the release's image",
    why="the release was tested with the kernel, DRBD and ZFS of its own image only",
    remedy="use the release's image: talos.image: {fromRelease: true}",
)
IMG_003 = Rule(
    "IMG-003",
    ERROR,
    title="The image has the extensions that the site needs",
    why="machines that run this image could not create volumes",
    remedy="use a profile that includes these extensions",
)
IMG_004 = Rule(
    "IMG-004",
    WARNING,
    title="The image is Cozystack's image or a mirror of it",
    why="machines are not upgraded to an unknown image, and plain Talos images have neither DRBD nor ZFS",
    remedy="use the release's image, or a mirror whose repository is named `talos`",
)


class BadProfile(Exception):
    """The profile cannot be read; the text says why, as the end of a sentence."""


@dataclass(frozen=True)
class Profile:
    """An image as its profile describes it: Talos `version` (v1.13.6) and `extensions`, image reference by name."""

    version: str
    extensions: dict[str, str]


def parse(text: str) -> Profile:
    """`profiles/installer.yaml` of a Cozystack release. Raises BadProfile."""
    try:
        document: Any = YAML(typ="safe", pure=True).load(text)
        version, inputs = document["version"], document["input"]
        base = inputs["baseInstaller"]["imageRef"]
        references = [str(one["imageRef"]) for one in inputs["systemExtensions"]]
    except (YAMLError, ValueError, RecursionError):
        raise BadProfile("it is not valid YAML") from None
    except (KeyError, TypeError):
        raise BadProfile("it is not an image profile with version, input.baseInstaller and systemExtensions") from None
    if not isinstance(version, str) or _talos_version(version) is None:
        raise BadProfile(f"its version {str(version)[:40]!r} is not a Talos version")
    if (of_base := talos_of(str(base))) != version:
        raise BadProfile(f"it is for Talos {version}, but its base installer is {of_base or 'of an unknown version'}")
    return Profile(version, {_repository(reference): reference for reference in references})


def read(source: str, root: Path) -> str:
    """The text behind an https URL, a file, or a checkout of Cozystack (both relative to `root`). Raises BadProfile."""
    if "://" in source:
        return _fetched(source)
    path = root / Path(source).expanduser()
    path = path / IN_CHECKOUT if path.is_dir() else path
    try:
        with path.open("rb") as file:
            return _text(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise BadProfile(f"{path}: {error.strerror or 'cannot be read'}") from None


def _fetched(url: str) -> str:
    if not url.startswith("https://"):
        raise BadProfile("only https URLs are allowed, because anyone on the path could otherwise replace the image")
    try:
        with (
            httpx.Client(timeout=FETCH_S, follow_redirects=True, event_hooks={"request": [_refuse_plain]}) as client,
            client.stream("GET", url, headers={"Cache-Control": "no-cache"}) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise BadProfile(f"the server returned {response.status_code} {response.reason_phrase}")
            content = b""
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    break
    except httpx.InvalidURL:
        raise BadProfile("it is not a valid URL") from None
    except httpx.HTTPError as error:
        raise BadProfile(f"it cannot be downloaded: {str(error) or type(error).__name__}") from None
    return _text(content)


def _refuse_plain(request: httpx.Request) -> None:
    if request.url.scheme != "https":
        raise BadProfile(f"it redirects to {request.url.host} without https")


def _text(content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise BadProfile(f"it is larger than {MOST_BYTES // 1024} KiB")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadProfile("it is not UTF-8 text") from None


# Image references -------------------------------------------------------------------------------------------------------


def talos_of(image: str) -> str | None:
    """The Talos version in an image's tag; None where the tag is something else, e.g. a Cozystack release, or absent."""
    return _talos_version(_tag(image))


def tuned(image: str) -> bool:
    """Whether an installer image is Cozystack's (or a mirror of it): nothing else is known to carry DRBD and ZFS.

    Its repository is called `talos` wherever it is mirrored; plain and factory images are called `installer`.
    """
    return _repository(image) == "talos"


def _tag(image: str) -> str:
    return image.split("@", 1)[0].rpartition("/")[2].partition(":")[2]


def _repository(image: str) -> str:
    return image.split("@", 1)[0].rpartition("/")[2].partition(":")[0]


def _talos_version(text: str) -> str | None:
    version = Version.parse(text)
    return text if text.startswith("v") and version is not None and releases.kubernetes_range(version) else None


# The stack's pin --------------------------------------------------------------------------------------------------------


def pinned(loaded: Loaded) -> Loaded:
    """The stack file with its image profile read, if it names one, and with findings about what it pins."""
    site = loaded.site
    if site is None or site.existing:
        return loaded
    findings = [*_with_profile(site, loaded.root), *drift(site)]
    return replace(loaded, findings=(*loaded.findings, *findings))


def _with_profile(site: Site, root: Path) -> Iterator[Finding]:
    source = site.talos.image.profile
    if not source:
        return
    path, name = site.where("talos", "image", "profile"), _USER.sub("//", source)
    try:
        profile = parse(read(source, root))
    except BadProfile as error:
        yield IMG_001.at(path, problem=f"{name}: {error}", fix=IMG_001.remedy)
        return
    site.pinned_by(profile.version)
    if missing := [name for name in site.talos.extensions if name not in profile.extensions]:
        problem = f"{name} does not include the extension {', '.join(missing)}"
        yield IMG_003.at(path, problem=problem, fix="use the profile of a Cozystack release")
    release = releases.find(site.cluster.cozystack)
    if release is not None and profile.version != release.talos:
        problem = f"{name} pins Talos {profile.version}, but Cozystack {release.version} pins {release.talos}"
        yield IMG_002.at(path, problem=problem, fix="use the profile of the same release, or remove talos.image")


def drift(site: Site) -> Iterator[Finding]:
    """Where an image that the stack names is something else than the release's."""
    release = releases.find(site.cluster.cozystack)
    if release is None:
        return
    reference = site.talos.image.reference
    if reference:
        steps: tuple[Step, ...] = ("talos", "image", "reference")
        yield from _image(release, site.where(*steps), reference)
    for position, node in enumerate(site.nodes):
        if node.image:
            yield from _image(release, site.where("nodes", position, "image"), node.image)


def _image(release: Release, path: str, image: str) -> Iterator[Finding]:
    version = talos_of(image)
    if not tuned(image):
        fix = f"use {releases.TALOS_IMAGE}:{release.talos}, or a mirror of it"
        yield IMG_004.at(path, problem=f"{image} is not known to be a Cozystack image", fix=fix)
    if version is None and _tag(image) != f"v{release.version}":
        problem = f"the tag of {image} does not name a Talos version; {release.talos} is assumed"
        yield IMG_002.at(path, problem=problem, fix=f"use the tag {release.talos}", severity=NOTE)
    elif version is not None and version != release.talos:
        problem = f"{image} is Talos {version}, but Cozystack {release.version} pins {release.talos}"
        yield IMG_002.at(path, problem=problem, fix=f"use the tag {release.talos}")
