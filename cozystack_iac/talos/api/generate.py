"""Generates the protobuf and grpclib modules beside the `.proto` files. `python -m cozystack_iac.talos.api.generate [OUT]`

Needs the development extra (grpcio-tools; the stubs are protoc's own). Protos are compiled from the root of the checkout, so that
imports are package-absolute and file names are unique in the process-wide descriptor pool.
"""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def generate(out: Path) -> None:
    """Writes the generated modules below `out`, at `cozystack_iac/talos/api/`. Raises RuntimeError when protoc refuses."""
    from grpc_tools import protoc

    protos = sorted(str(path.relative_to(ROOT)) for path in HERE.glob("*.proto"))
    well_known = str(resources.files("grpc_tools") / "_proto")
    outputs = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpclib_python")]
    plugin = f"--plugin=protoc-gen-grpclib_python={Path(sys.executable).with_name('protoc-gen-grpclib_python')}"
    code = protoc.main(["protoc", f"-I{ROOT}", f"-I{well_known}", plugin, *outputs, *protos])
    if code != 0:
        raise RuntimeError(f"protoc ended with {code}")
    for empty in (out / HERE.relative_to(ROOT)).glob("common_grpc.py"):
        empty.unlink()  # the plugin writes a module for every proto, with or without a service


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
