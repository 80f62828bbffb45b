"""How a machine gets into Talos' maintenance mode, per boot method, with the exact commands for the pinned version. Pure.

Printed when machines are not in maintenance mode; nothing here is ever run by us.
"""

from __future__ import annotations

from enum import StrEnum

from cozystack_iac.releases import TALOS_IMAGE

RELEASES = "https://github.com/cozystack/cozystack/releases/download"  # assets of a Cozystack release
BOOT_TO_TALOS = "https://github.com/cozystack/boot-to-talos/releases/latest/download/boot-to-talos-linux-amd64.tar.gz"


class Method(StrEnum):
    """Ways to boot, in the order of how often they are the right one."""

    CLOUD_IMAGE = "cloud image"
    BOOT_TO_TALOS = "boot-to-talos"
    ISO = "ISO"
    PXE = "PXE"
    OCI = "OCI custom image"


def guidance(cozystack: str, talos: str, *, image: str = "") -> str:
    """All methods for this Cozystack release (`1.6.2`) and its Talos (`v1.13.6`); `image`: an installer of the stack's own."""
    parts = [f"{method.value}\n{_indented(commands(method, cozystack, talos, image=image))}" for method in Method]
    return "\n\n".join(
        [
            "How to boot a machine into maintenance mode (choose one method; the program runs none of these commands):",
            *parts,
        ]
    )


def commands(method: Method, cozystack: str, talos: str, *, image: str = "") -> str:
    """The commands of one method, with `<…>` where only a person knows the value."""
    assets = f"{RELEASES}/v{cozystack.removeprefix('v')}"
    installer = image or f"{TALOS_IMAGE}:{talos}"
    match method:
        case Method.CLOUD_IMAGE:
            return (
                f"curl -LO {assets}/nocloud-amd64.raw.xz && xz -d nocloud-amd64.raw.xz\n# import "
                "nocloud-amd64.raw as a disk image and start the machine from it without user data\n# "
                "Talos counts as installed: the configuration takes effect without another installation"
            )
        case Method.BOOT_TO_TALOS:
            return (
                "# run as root on the Linux that is installed now; this overwrites the disk\ncurl -L "
                f"{BOOT_TO_TALOS} | tar -xz\n./boot-to-talos -yes -mode install -disk <disk> -image "
                f"{installer}\n# without -image it would install its own default version"
            )
        case Method.ISO:
            return (
                f"curl -LO {assets}/metal-amd64.iso\n# boot the machine from it (USB stick or BMC virtual "
                "media); Talos is installed once the configuration is applied"
            )
        case Method.PXE:
            return (
                f"curl -LO {assets}/kernel-amd64\n"
                f"curl -LO {assets}/initramfs-metal-amd64.xz\n"
                "# iPXE: kernel kernel-amd64 talos.platform=metal slab_nomerge pti=on console=tty0\n"
                "#       initrd initramfs-metal-amd64.xz"
            )
        case Method.OCI:
            return (
                f"curl -LO {assets}/metal-amd64.raw.xz && xz -d metal-amd64.raw.xz\n"
                "qemu-img convert -f raw -O qcow2 metal-amd64.raw talos.qcow2\n"
                "oci os object put --bucket-name <bucket> --file talos.qcow2\n"
                "oci compute image import from-object --compartment-id <compartment> --bucket-name <bucket> "
                f"--namespace <namespace> --name talos.qcow2 --source-image-type QCOW2 --launch-mode PARAVIRTUALIZED "
                f"--display-name talos-{talos}\n"
                "# some shapes only boot it with BIOS firmware and a streamOptimized VMDK"
            )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
