"""The page about gRPC names what there is."""

import re

from serve.doors.riva import protocol
from serve.doors.riva.protocol import SynthesizeSpeechRequest
from serve.doors.riva.translation import STATUSES, Configuration
from tests.support.pages import PAGES, section

PAGE = "docs/grpc.md"


def test_every_field_and_status_is_explained():
    for name in (*SynthesizeSpeechRequest.DESCRIPTOR.fields_by_name, *Configuration.model_fields):
        assert f"`{name}`" in section(PAGE, "Fields"), name
    rows = re.findall(r"^\| ([0-9, ]+) \| `(\w+)` \|$", section(PAGE, "Errors"), re.MULTILINE)
    told = {int(status): code for statuses, code in rows for status in statuses.split(", ")}
    assert told == {status: code.name for status, code in STATUSES.items()} | {500: "INTERNAL"}


def test_the_function_of_the_configuration_is_there():
    (named,) = re.findall(r"grpc_servicer_functions: \[serve\.doors\.riva\.protocol:(\w+)\]", PAGES[PAGE])
    assert callable(getattr(protocol, named))
