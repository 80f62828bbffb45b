"""`python -m lab.toolchain ensure|doctor`."""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from lab.toolchain import ToolchainError, doctor, ensure
from lab.toolchain.cache import Cache
from lab.toolchain.progress import say


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.toolchain", description="The tools of the lab.")
    commands = parser.add_subparsers(dest="command", required=True)
    getting = commands.add_parser("ensure", help="find every tool, and build what is missing")
    getting.add_argument("--state", type=Path, default=Path(".lab"), help="directory of the run (default: .lab)")
    getting.add_argument("--only", nargs="+", metavar="TOOL", help="these tools, and what they need")
    getting.add_argument("--official", action="store_true", help="accept official provider plugins only")
    commands.add_parser("doctor", help="show each tool, its version and where it comes from")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.command == "ensure")
    try:
        if options.command == "doctor":
            doctor.show(console, Cache.of())
        else:
            for tool in ensure(options.state, only=options.only, official=options.official, console=console).tools:
                say(console, f"{tool.name} {tool.version} ({tool.origin}) {tool.path}")
    except (ToolchainError, ValueError) as error:
        console.print(str(error), markup=False, soft_wrap=True, style="red")
        return 1
    except KeyboardInterrupt:
        say(console, "stopped; finished parts stay in the cache, the rest was removed")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
