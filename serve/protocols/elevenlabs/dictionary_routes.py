"""ElevenLabs dictionaries: rules of pronunciation, kept as lexicons, which are named by id where a text is spoken.

In:    HTTP
Out:   JSON
Never: a sound of phonemes, which the model cannot be told; a lexicon of another key in a list
"""

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Annotated, Any, Literal
from xml.etree.ElementTree import ParseError

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field
from starlette.datastructures import UploadFile

from pipeline.errors import UnknownLexicon
from pipeline.store.threads import ask_store
from pipeline.text.lexicon.lexicon_library import LEXICON_ID, MAX_ENTRIES, Entries
from pipeline.types import LexiconEntry, PronunciationKind
from serve.access.api_keys import Scope
from serve.errors import bad_request
from serve.http.dependencies import RequestServices
from serve.http.forms import FORM_ROOM, read_form
from serve.http.ignored_fields import ignored_header
from serve.http.middleware import caller_of
from serve.http.openapi import takes
from serve.http.route_access import requires
from serve.http.services import Services
from serve.protocols.elevenlabs.routes import REFUSED
from serve.speech.schemas.base import Body, read_body, read_values
from serve.speech.schemas.text import LexiconBody, entries_of

PATH = "/v1/pronunciation-dictionaries"
VERSION = "latest"  # of every dictionary: lexicons have no versions that a request could name
NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]+")

FIELDS = {"name": {"type": "string"}, "file": {"type": "string", "format": "binary", "description": "a lexicon in PLS"}}
FORM_SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS)}
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}}

router = APIRouter()


class Rule(Body):
    """What a word sounds like. Fields without effect are kept, so that the reply can name them."""

    model_config = ConfigDict(extra="allow")

    string_to_replace: str
    type: Literal["alias", "phoneme"] = "alias"
    alias: str | None = Field(None, description="other words; the sounds of phonemes are not used")
    case_sensitive: bool = True


class RulesBody(Body):
    """POST /v1/pronunciation-dictionaries/add-from-rules."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(min_length=1, max_length=200, description="its id begins with it")
    rules: Annotated[list[Rule], Field(max_length=MAX_ENTRIES)]


class ChangesBody(Body):
    """POST /v1/pronunciation-dictionaries/{id}/set-rules, add-rules or remove-rules."""

    model_config = ConfigDict(extra="allow")

    rules: list[Rule] = Field(default_factory=list, max_length=MAX_ENTRIES)
    rule_strings: list[str] = Field(default_factory=list, max_length=MAX_ENTRIES, description="the words whose rules go")


@router.post(f"{PATH}/add-from-rules", openapi_extra=takes(RulesBody), responses=REFUSED)
@requires(Scope.TEXT, stores=True)
async def add_from_rules(request: Request, services: RequestServices) -> Response:
    return await creation(await services.bodies.read_json(request, partial(read_body, RulesBody)), request, services)


@router.post(f"{PATH}/add-from-file", openapi_extra=FORM, responses=REFUSED)
@requires(Scope.TEXT, stores=True)
async def add_from_file(request: Request, services: RequestServices) -> Response:
    form = await read_form(request, services, services.speech.limits.max_body_bytes + FORM_ROOM)
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise bad_request("missing_field", "file is required: a lexicon in PLS", param="file")
        values = {name: value for name, value in form.items() if name != "file"}
        rules = await asyncio.to_thread(rules_in, await file.read())
        body = read_values(RulesBody, {**values, "rules": rules})
    finally:
        await form.close()
    return await creation(body, request, services)


@router.get(PATH, responses=REFUSED)
@requires(Scope.TEXT)
async def dictionaries(request: Request, services: RequestServices) -> dict[str, Any]:
    owner = caller_of(request).writer.id
    cards = [card(name, entries, owner) for name, entries in services.speech.lexicons.owned(owner).items()]
    return {"pronunciation_dictionaries": cards, "next_cursor": None, "has_more": False}


@router.get(f"{PATH}/{{name}}", responses=REFUSED)
@requires(Scope.TEXT)
async def dictionary(name: str, request: Request, services: RequestServices) -> dict[str, Any]:
    entries, caller = entries_in(name, services), caller_of(request).writer.id
    owner = caller if name in services.speech.lexicons.owned(caller) else ""
    return {**card(name, entries, owner), "rules": [rule_of(entry) for entry in entries]}


@router.post(f"{PATH}/{{name}}/set-rules", openapi_extra=takes(ChangesBody), responses=REFUSED)
@router.post(f"{PATH}/{{name}}/add-rules", openapi_extra=takes(ChangesBody), responses=REFUSED)
@router.post(f"{PATH}/{{name}}/remove-rules", openapi_extra=takes(ChangesBody), responses=REFUSED)
@requires(Scope.TEXT, stores=True)
async def change_rules(name: str, request: Request, services: RequestServices) -> Response:
    body = await services.bodies.read_json(request, partial(read_body, ChangesBody))
    entries_in(name, services)
    removed, added = {word.lower() for word in body.rule_strings}, {entry.word: entry for entry in aliases_of(body.rules)}

    def changed(entries: Entries) -> Entries:
        before = () if request.url.path.endswith("/set-rules") else entries
        after = tuple(({entry.word: entry for entry in before if entry.word.lower() not in removed} | added).values())
        if not 1 <= len(after) <= MAX_ENTRIES:
            raise bad_request("out_of_range", f"a dictionary has 1 to {MAX_ENTRIES} rules with an alias", param="rules")
        return after

    await ask_store(services.speech.lexicons.change, name, changed, caller_of(request).writer)
    return replied(name, entries_in(name, services), body)


def entries_in(name: str, services: Services) -> Entries:
    """Returns the entries of a dictionary.

    Raises:
        ApiError: 404
    """
    try:
        return services.speech.lexicons.get(name if LEXICON_ID.fullmatch(name) else "")
    except UnknownLexicon:
        raise bad_request("lexicon_not_found", "no such dictionary", status=404) from None


async def creation(body: RulesBody, request: Request, services: Services) -> Response:
    """Stores the rules that have an alias under an id that begins with the name; the others are named as ignored.

    Raises:
        ApiError: 400, no rule has one.
    """
    entries = aliases_of(body.rules)
    if not entries:
        raise bad_request("invalid_lexicon", "no rule has an alias: write the sounds as other words", param="rules")
    name = f"{NOT_IN_AN_ID.sub('-', body.name).strip('-')[:48] or 'dictionary'}-{secrets.token_hex(4)}"
    await ask_store(services.speech.lexicons.put, name, entries, caller_of(request).writer)
    return replied(name, entries, body, **{**card(name, entries, caller_of(request).writer.id), "name": body.name})


def aliases_of(rules: Iterable[Rule]) -> Entries:
    """Returns the rules that have an alias, as a lexicon has them.

    Raises:
        ApiError: 400
    """
    aliases = {
        rule.string_to_replace if rule.case_sensitive else rule.string_to_replace.lower(): rule.alias
        for rule in rules
        if rule.alias
    }
    return entries_of(read_values(LexiconBody, {"entries": aliases}).entries) if aliases else ()


def replied(lexicon_id: str, entries: Entries, body: RulesBody | ChangesBody, **more: Any) -> Response:
    """Returns the reply about a dictionary that was stored, which names the fields without effect."""
    ignored = dict.fromkeys([*(body.model_extra or {}), *(f"rules.{word}" for rule in body.rules for word in unused(rule))])
    reply = {**more, "id": lexicon_id, "version_id": VERSION, "version_rules_num": len(entries)}
    return JSONResponse(reply, headers={"X-Ignored-Fields": ignored_header(ignored)} if ignored else {})


def unused(rule: Rule) -> Iterator[str]:
    """Yields the fields of a rule that have no effect: words have boundaries in any case."""
    yield from (name for name, value in (rule.model_extra or {}).items() if (name, value) != ("word_boundaries", True))


def rules_in(document: bytes) -> list[dict[str, str]]:
    """Returns the rules of a lexicon in PLS, one for each way to write a word.

    Raises:
        ApiError: 400, it is none.
    """
    try:
        lexemes = list(fromstring(document).iterfind("{*}lexeme"))
    except (ParseError, DefusedXmlException, LookupError, ValueError):
        raise bad_request("invalid_lexicon", "the file is no lexicon in PLS", param="file") from None
    rules = []
    for lexeme in lexemes:
        sounds = {kind: text for kind in ("alias", "phoneme") if (text := (lexeme.findtext(f"{{*}}{kind}") or "").strip())}
        for grapheme in lexeme.iterfind("{*}grapheme"):
            rules.append({"string_to_replace": (grapheme.text or "").strip(), "type": next(iter(sounds), "alias"), **sounds})
    return rules


def card(name: str, entries: Iterable[LexiconEntry], owner: str) -> dict[str, Any]:
    """Returns what is told of a dictionary. Clients check that the times are numbers, and lexicons have none."""
    return {
        "id": name,
        "name": name,
        "latest_version_id": VERSION,
        "latest_version_rules_num": len(tuple(entries)),
        "created_by": owner,
        "creation_time_unix": 0,
        "archived_time_unix": None,
        "description": None,
        "permission_on_resource": None,
    }


def rule_of(entry: LexiconEntry) -> dict[str, Any]:
    """Returns a rule; pinyin is an alphabet."""
    is_alias = entry.kind is PronunciationKind.ALIAS
    sound = (
        {"type": "alias", "alias": entry.value}
        if is_alias
        else {"type": "phoneme", "phoneme": entry.value, "alphabet": "pinyin"}
    )
    is_exact = entry.word != entry.word.lower()
    return {"string_to_replace": entry.word, "case_sensitive": is_exact, "word_boundaries": True, **sound}
