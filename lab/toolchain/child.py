"""Runs one Pulumi program, policy pack or component plugin; started by the language host, by file, in the project's Python.

It may use the standard library and the `pulumi` that is installed there, nothing of this checkout: the project's virtual
environment need not have it. The only argument is a JSON object, see `main`.
"""

import asyncio
import json
import logging
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SHOWN = 32
"""Exit code of a program that failed and has told the user why (the official host uses the same number)."""

_PARENT_POLL_S = 0.5


def main(argument: str) -> int:
    """Run what the object says: `{"kind": "program", …}`, `{"kind": "module", "name", "args"}` or `{"kind": "path", …}`.

    `parent` is the pid of the host; this process and its children end soon after that one does.
    """
    spec = json.loads(argument)
    _end_with(spec["parent"])
    if spec["kind"] == "program":
        return _program(spec)
    # As `python -m` and `python DIRECTORY` would have it, instead of the directory of this file.
    sys.path[0] = str(Path.cwd())
    if spec["kind"] == "module":
        sys.argv = [spec["name"], *spec["args"]]
        runpy.run_module(spec["name"], run_name="__main__", alter_sys=True)
    else:
        sys.path.pop(0)
        sys.argv = [spec["path"], *spec["args"]]
        runpy.run_path(spec["path"], run_name="__main__")
    return 0


def _end_with(parent: int) -> None:
    """Watch for the death of the host: nobody else would ever end this process."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        leads = os.getpgrp() == os.getpid()
        os.killpg(os.getpgrp(), signal.SIGTERM) if leads else os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _program(spec: dict[str, Any]) -> int:
    try:
        import pulumi
        import pulumi.runtime
    except ImportError as error:
        print(
            f"the program's Python has no usable Pulumi SDK ({error}): {sys.executable}\n"
            "install the project's dependencies into it and run again",
            file=sys.stderr,
        )
        return SHOWN
    pulumi.runtime.set_all_config(pulumi.runtime.get_config_env(), pulumi.runtime.get_config_secret_keys_env())
    pulumi.runtime.configure(pulumi.runtime.Settings(**spec["settings"]))
    program = Path(spec["path"])
    sys.argv = [str(program), *spec["args"]]
    if not (program.is_file() or (program / "__main__.py").is_file()):
        pulumi.log.error(f"there is no program: neither the file {program} nor {program / '__main__.py'} exists")
        return SHOWN
    if program.is_file():
        sys.path[0] = str(program.parent)
    else:
        sys.path.pop(0)  # runpy puts the directory there itself
    # The SDK leaves futures unobserved when a program fails; asyncio's complaints about that would bury the reason.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    return _in_loop(program, spec["settings"]["parallel"])


def _in_loop(program: Path, parallel: int) -> int:
    import pulumi
    import pulumi.runtime

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    def run() -> None:
        runpy.run_path(str(program), run_name="__main__")

    executor = ThreadPoolExecutor(max_workers=max(parallel, 1) * 4)
    loop.set_default_executor(executor)
    try:
        loop.run_until_complete(pulumi.runtime.run_in_stack(run))
        return 0
    except pulumi.RunError as error:
        pulumi.log.error(str(error))
        return SHOWN
    except Exception as error:  # noqa: BLE001 - whatever the program raises is shown to its author
        pulumi.log.error("Program failed with an unhandled exception:\n" + _of_the_user(error))
        return SHOWN
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        loop.close()
        sys.stdout.flush()
        sys.stderr.flush()


def _of_the_user(error: BaseException) -> str:
    """The traceback from the first frame of the program on: what is above it is this file, the SDK and asyncio."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    first = next((index for index, frame in enumerate(frames) if frame.name == "_run_code"), None)
    start = 0 if first is None else first + 1
    while start < len(frames) and frames[start].filename in ours:
        start += 1
    return "".join(
        traceback.format_exception(type(error), error, error.__traceback__, limit=start - len(frames) or None)
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except KeyboardInterrupt:  # the host stops this process on purpose; where it was is nobody's business
        sys.exit(128 + signal.SIGINT)
