"""``python -m lab.plugins.command <engine-address>``: what ``pulumi-resource-command`` runs."""

from lab.plugins.command.provider import CommandProvider
from lab.plugins.serve import serve

VERSION = "1.2.1"  # of the official plugin whose shapes these are

if __name__ == "__main__":
    serve(VERSION, CommandProvider())
