"""``python -m lab.plugins.talos <engine-address>``: what ``pulumi-resource-talos`` runs."""

from lab.plugins.serve import serve
from lab.plugins.talos.provider import TalosProvider

VERSION = "0.8.1"  # of the official plugin whose shapes these are

if __name__ == "__main__":
    serve(VERSION, TalosProvider())
