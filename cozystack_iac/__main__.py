"""`python -m cozystack_iac`: judge a stack file without the engine, look at a platform, write a bundle or generated documents."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cozystack_iac.diagnosis import bundle, known, on_demand
from cozystack_iac.findings import Verdict, as_json, as_markdown, table
from cozystack_iac.kube.access import from_file
from cozystack_iac.kube.kubeconfig import BadKubeconfig
from cozystack_iac.readiness import status
from cozystack_iac.rules import reference as findings_reference
from cozystack_iac.rules import verdict
from cozystack_iac.settings import load
from cozystack_iac.settings import reference as settings_reference
from cozystack_iac.talos.profile import pinned

_FORMATS: Mapping[str, Callable[[Verdict], str]] = {"table": table, "json": as_json, "markdown": as_markdown}


def schema_text() -> str:
    """`docs/stack.schema.json`."""
    return json.dumps(settings_reference.schema(), indent=2, ensure_ascii=False) + "\n"


GENERATED: Mapping[str, Callable[[], str]] = {
    "findings.md": findings_reference.markdown,
    "known-failures.md": known.markdown,
    "settings.md": settings_reference.markdown,
    "stack.schema.json": schema_text,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 fine, 1 the verdict blocks, 2 wrong usage (argparse)."""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cozystack_iac", description="Check stack files of cozystack-iac offline.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="check a stack file; exit code 1 if it has errors")
    check.add_argument("stack_file", type=Path, metavar="STACKFILE", help="e.g. Pulumi.prod.yaml")
    check.add_argument("--format", choices=sorted(_FORMATS), default="table", help="default: table")
    check.set_defaults(run=_check)
    schema = commands.add_parser("schema", help="print the JSON Schema of stack files")
    schema.set_defaults(run=_schema)
    docs = commands.add_parser("docs", help="write the generated documents")
    docs.add_argument("folder", type=Path, nargs="?", default=Path("docs"), help="default: docs")
    docs.set_defaults(run=_docs)
    state = commands.add_parser(
        "status", help="show how far the platform is; exit code 0 ready, 1 not ready, 2 unknown"
    )
    _on_cluster(state)
    state.set_defaults(run=_status)
    help_ = "collect a support bundle from a cluster, without secrets; nothing is sent anywhere"
    support = commands.add_parser("bundle", help=help_)
    _on_cluster(support)
    support.add_argument(
        "--stack", type=Path, metavar="STACKFILE", help="add its findings, and how machines and public names respond"
    )
    support.add_argument(
        "--out", type=Path, default=bundle.FOLDER, help=f"directory for the archive; default: {bundle.FOLDER}"
    )
    support.set_defaults(run=_bundle)
    return parser


def _on_cluster(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--kubeconfig",
        type=Path,
        required=True,
        help="kubeconfig of the cluster; nothing is taken from the environment",
    )
    command.add_argument("--context", default="", help="default: the current context of the file")


def _check(options: argparse.Namespace) -> int:
    judged = verdict(pinned(load.from_file(options.stack_file)))
    print(_FORMATS[options.format](judged))
    return 1 if judged.blocking else 0


def _schema(_: argparse.Namespace) -> int:
    sys.stdout.write(schema_text())
    return 0


def _bundle(options: argparse.Namespace) -> int:
    try:
        path = asyncio.run(on_demand.bundle(_kubeconfig(options), options.out, options.stack))
    except (OSError, BadKubeconfig) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(path.absolute())
    print("Nothing was sent anywhere. Review the bundle before you share it; issue.md in it is ready to paste.")
    return 0


def _status(options: argparse.Namespace) -> int:
    try:
        judgement = asyncio.run(status.look(_kubeconfig(options)))
    except (OSError, BadKubeconfig) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(status.text(judgement))
    return status.exit_code(judgement)


def _kubeconfig(options: argparse.Namespace) -> str:
    if options.context:
        return from_file(str(options.kubeconfig), options.context).text
    path: Path = options.kubeconfig
    return path.expanduser().read_text()


def _docs(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, render in GENERATED.items():
        (folder / name).write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
