"""Stands in for a command inside the lab: asks the control socket for its answer and ends the same way.

Installed under the name of the command it plays (`linstor`, `zpool`). Only the standard library: it starts often.
"""

import json
import os
import socket
import sys
from pathlib import Path


def main() -> int:
    name = Path(sys.argv[0]).name
    request = {"ask": name, "argv": sys.argv[1:], "machine": os.environ.get("LAB_MACHINE", "")}
    path = Path(os.environ.get("LAB_STATE", ".")) / "control.sock"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(connection.makefile("rb").readline())
    except (OSError, ValueError) as error:
        print(f"{name}: the lab does not answer at {path}: {error}", file=sys.stderr)
        return 70
    if "error" in reply:
        print(f"{name}: {reply['error']}", file=sys.stderr)
        return 70
    answer = reply["ok"]
    sys.stdout.write(answer["stdout"])
    sys.stderr.write(answer["stderr"])
    return int(answer["code"])


if __name__ == "__main__":
    sys.exit(main())
