"""MCP server: the tools of a running service for an agent on this machine, over stdin and stdout.

In:    the address of a service, a key, a folder
Out:   the Model Context Protocol on stdin and stdout; sound files
Never: a key as an argument, which every process of the machine can read
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

TOOLS = "serve.protocols.mcp.tools"


def main(arguments: list[str] | None = None) -> int:
    """Runs until stdin ends."""
    parser = argparse.ArgumentParser(prog="chattts-serve mcp", description="Tools for agents: MCP over stdin and stdout.")
    url = os.environ.get("CHATTTS_URL", "http://localhost:8000")
    parser.add_argument("--url", default=url, help="of the service (CHATTTS_URL; %(default)s); its key is CHATTTS_KEY")
    parser.add_argument("--folder", type=Path, default=Path(), help="for sound files (here)")
    args = parser.parse_args(arguments)
    try:
        tools = importlib.import_module(TOOLS)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: pip install 'chattts-serve[mcp]'", file=sys.stderr)
        return 1
    service = tools.RemoteService(args.url.rstrip("/"), os.environ.get("CHATTTS_KEY"), args.folder)
    tools.build_server(lambda context: service).run("stdio")
    return 0


if __name__ == "__main__":
    sys.exit(main())
