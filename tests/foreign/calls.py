"""The calls of calls.toml, made by the clients themselves against a running service: prints a line for each.

It runs in the environment of the clients that it is told, and imports nothing of this project.

    python calls.py openai elevenlabs --url http://localhost:8000 --grpc localhost:9000 --wyoming tcp://localhost:10200
    python calls.py openai-js --packages .clients-javascript      # with node in PATH

The exit code is the number of calls that did something else than the table says, 100 at most.
"""

import argparse
import ast
import asyncio
import base64
import io
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("calls.toml")
LEAST_BYTES = 4000  # of raw samples of a sentence
IN_TIME_S = 120.0

JAVASCRIPT = """
async function heard(value) {
  if (value?.audio?.uint8Array) value = value.audio.uint8Array;
  else if (typeof value?.arrayBuffer === "function") value = await value.arrayBuffer();
  else if (value?.[Symbol.asyncIterator]) {
    const pieces = [];
    for await (const piece of value) pieces.push(Buffer.from(piece));
    value = Buffer.concat(pieces);
  }
  const isBytes = value instanceof ArrayBuffer || ArrayBuffer.isView(value);
  return isBytes ? { audio: Buffer.from(value).toString("base64") } : { answer: Boolean(value) };
}
const calls = [%s];
for (const call of calls) {
  const late = new Promise((_, refuse) => setTimeout(() => refuse(new Error("late")), 120_000).unref());
  const said = await Promise.race([call().then(heard), late]).catch((error) => ({
    error: error.constructor.name === "Object" ? error.name : error.constructor.name, words: String(error.message) }));
  console.log(JSON.stringify(said));
}
process.exit(0);
"""


def calls_of(client: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields each call of a client with what it gives; a row made `with` values has one for each combination of them."""
    for row in client["call"]:
        values: dict[str, list[str]] = row.get("with", {})
        for chosen in product(*values.values()):
            code = row["code"]
            for name, value in zip(values, chosen, strict=True):
                code = code.replace(f"${name}", value)
            yield code.strip(), row["gives"]


def decoded(audio: bytes) -> int:
    """Samples of a file, of every stream of it to the end."""
    import av

    with av.open(io.BytesIO(audio)) as file:
        return sum(frame.samples for frame in file.decode(audio=0))


def judged(gives: str, said: dict[str, Any]) -> str:
    """What is wrong with what a call said; nothing: it gave what it should."""
    if "error" in said:
        return "" if said["error"] == gives else f"{said['error']}: {said['words'][:300]}"
    if gives == "answer":
        return "" if said.get("answer") or said.get("audio") else "an empty answer"
    audio = base64.b64decode(said.get("audio") or "")
    if gives == "samples":
        return "" if len(audio) >= LEAST_BYTES else f"{len(audio)} bytes"
    if gives != "audio":
        return f"no {gives}"
    try:
        return "" if decoded(audio) > 0 else f"{len(audio)} bytes without a sample"
    except Exception as error:
        return f"{len(audio)} bytes: {type(error).__name__}: {error}"


async def heard(value: Any) -> dict[str, Any]:
    """What a call returned: audio, if it is bytes in any form."""
    if hasattr(value, "__aiter__"):
        value = b"".join([piece async for piece in value])
    elif hasattr(value, "__next__"):
        value = b"".join(value)
    elif isinstance(getattr(value, "content", None), bytes):
        value = value.content
    is_audio = isinstance(value, bytes | bytearray)
    return {"audio": base64.b64encode(value).decode()} if is_audio else {"answer": bool(value)}


async def made(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Makes a call: statements, of which the last one is its result."""
    tree = ast.parse("async def call():\n    pass")
    (function,) = tree.body
    assert isinstance(function, ast.AsyncFunctionDef)
    function.body = ast.parse(code).body
    if isinstance(last := function.body[-1], ast.Expr):
        function.body[-1] = ast.copy_location(ast.Return(last.value), last)
    exec(compile(ast.fix_missing_locations(tree), "call", "exec"), names)
    try:
        async with asyncio.timeout(IN_TIME_S):
            return await heard(await names["call"]())
    except Exception as error:
        return {"error": type(error).__name__, "words": str(error)}


def of_python(client: dict[str, Any], codes: list[str], places: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Makes the calls of a package for Python in this process."""
    names: dict[str, Any] = dict(places)
    exec(client["setup"], names)
    with asyncio.Runner() as runner:  # one loop: clients keep their connections in it
        for code in codes:
            yield runner.run(made(code, names))


def of_javascript(client: dict[str, Any], codes: list[str], places: dict[str, str], packages: Path) -> Iterator[dict[str, Any]]:
    """Makes the calls of a package for JavaScript in one process of Node.js, beside the packages."""
    constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in places.items())
    functions = ",\n".join(f"async () => {{\n{code}\n}}" for code in codes)
    with tempfile.NamedTemporaryFile("w", suffix=".mjs", dir=packages) as script:
        script.write(client["setup"] + constants + client.get("then", "") + JAVASCRIPT % functions)
        script.flush()
        with subprocess.Popen(["node", script.name], stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if line.startswith('{"'):
                    yield json.loads(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="+", metavar="CLIENT", help="tables of calls.toml")
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--grpc", default="localhost:9000")
    parser.add_argument("--wyoming", default="tcp://localhost:10200")
    parser.add_argument("--packages", type=Path, help="folder of node_modules, for clients of JavaScript")
    options = parser.parse_args()
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    places = {
        "ADDRESS": options.url,
        "WS": options.url.replace("http", "ws", 1),
        "GRPC": options.grpc,
        "WYOMING": options.wyoming,
    }
    wrong = 0
    for name in options.clients:
        client = table[name]
        calls = list(calls_of(client))
        codes = [code for code, _ in calls]
        if is_javascript := client["language"] == "JavaScript":
            package = json.loads((options.packages / "node_modules" / client["package"] / "package.json").read_text())
            replies = of_javascript(client, codes, places, options.packages)
        else:
            replies = of_python(client, codes, places)
        known = package["version"] if is_javascript else version(client["package"])
        for code, gives in calls:
            fault = judged(gives, next(replies, {"error": "Nothing", "words": "the client ended"}))
            wrong += bool(fault)
            line = " ".join(code.split())
            print(f"{'WRONG' if fault else 'right'} {name} {known}: {line[:140]} -> {fault or gives}", flush=True)
    return min(wrong, 100)


if __name__ == "__main__":
    sys.exit(main())
