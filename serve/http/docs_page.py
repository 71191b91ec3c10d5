"""Docs page: the OpenAPI document as HTML, without a script.

In:    the document
Out:   a page whose only foreign parts are the studio's own style and icon
Owns:  nothing
Never: text that is not escaped; an address elsewhere
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from serve.http import page_files
from serve.http.about import NAME


def docs_page(document: Mapping[str, Any]) -> bytes:
    """Returns the page: every operation, with its parameters, body and replies."""
    style = f"page/{page_files.version()}"
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_json(name, schema, mark=name) for name, schema in document["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{NAME}: API</title><link rel="icon" href="{style}/icon.svg" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{style}/style.css"></head><body><header><h1>{NAME} <span>API</span></h1></header><main>'
        f'<p>Version {escape(document["info"]["version"])}. For programs: <a href="openapi.json">openapi.json</a>. '
        '<a href=".">The studio</a>, <a href="source">the source</a>.</p>'
        f"{operations}<h2>Schemas</h2>{schemas}</main></body></html>"
    ).encode()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    says = escape(operation.get("description") or operation.get("summary") or "")
    return f"<section><h2><code>{method.upper()} {escape(path)}</code></h2><p>{says}</p>{''.join(_parts(operation))}</section>"


def _parts(operation: Mapping[str, Any]) -> Iterator[str]:
    parameters = operation.get("parameters", ())
    if parameters:
        rows = "".join(f"<li><code>{escape(one['name'])}</code> ({escape(one['in'])})</li>" for one in parameters)
        yield f"<ul>{rows}</ul>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield _json(f"body: {kind}", content.get("schema", {}))
    yield f"<p>Replies: {', '.join(map(escape, operation['responses']))}</p>"


def _json(title: str, schema: Mapping[str, Any], mark: str = "") -> str:
    text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
    place = f' id="{escape(mark)}"' if mark else ""
    return f"<details{place}><summary>{escape(title)}</summary><pre>{text}</pre></details>"
