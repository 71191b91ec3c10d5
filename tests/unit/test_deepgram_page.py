"""The page about Deepgram's protocol names what there is."""

import re
from collections import defaultdict

from serve.http.deepgram.door import DeepgramMessage
from serve.http.deepgram.errors import NAMES
from serve.http.deepgram.translation import CONTAINERS, SpeakQuery
from tests.support.pages import section

PAGE = "docs/deepgram.md"


def test_every_field_encoding_and_message_is_explained():
    for name in (*SpeakQuery.model_fields, *CONTAINERS):
        assert f"`{name}`" in section(PAGE, "Query"), name
    for kind in DeepgramMessage.model_fields["type"].annotation.__args__:
        assert f'| `{{"type": "{kind}"' in section(PAGE, "WebSocket")


def test_every_name_of_an_error_is_explained():
    codes = defaultdict(list)
    for code, named in NAMES.items():
        codes[named].append(f"`{code}`")
    for (status, name), ours in codes.items():
        row = re.escape(f"| {', '.join(ours)} | `{name}` | {status} |")
        assert re.search(row, section(PAGE, "Errors")), name
