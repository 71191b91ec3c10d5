"""NVIDIA's client, unmodified, against a server of this project: prints one line of JSON.

It runs in a virtual environment of its own (tests/support/foreign.py), so it imports nothing of this project.

    python riva_scenarios.py ADDRESS
"""

import json
import sys
from typing import Any

import grpc
import riva.client
from riva.client.proto import riva_tts_pb2

TEXT = "Hello there."
auth = riva.client.Auth(uri=sys.argv[1], metadata_args=[["authorization", "Bearer none"]])
service = riva.client.SpeechSynthesisService(auth)


def refused(**fields: Any) -> list[str]:
    try:
        service.synthesize(**fields)
    except grpc.RpcError as error:
        refusal: Any = error
        return [refusal.code().name, refusal.details().partition(":")[0]]
    return []


def main() -> None:
    rate: Any = {"sample_rate_hz": 24_000, "custom_configuration": {"seed": "5"}}
    whole = service.synthesize(TEXT, voice_name="alloy", enable_word_time_offsets=True, **rate)
    streamed = b"".join(reply.audio for reply in service.synthesize_online([TEXT], voice_name="alloy", **rate))
    several = [len(reply.audio) for reply in service.synthesize_online(["One more.", "And another one."], **rate)]
    config = service.stub.GetRivaSynthesisConfig(riva_tts_pb2.RivaSynthesisConfigRequest(), metadata=auth.get_auth_metadata())
    # As its documentation has it: NVIDIA's voices, and SSML.
    first = service.synthesize("Hello there.", voice_name="English-US.Female-1", language_code="en-US", sample_rate_hz=44_100)
    document = "<speak>Hello. <break time='1s'/> There.</speak>"
    paused = service.synthesize(document, voice_name="Magpie-Multilingual.EN-US.Aria", language_code="en-US", **rate)
    results = {
        "first_lines": len(first.audio) > 10_000 and len(paused.audio) > 10_000,
        "whole": len(whole.audio) > 10_000,
        "words": [word.word for word in whole.meta.words],
        "streamed_as_whole": streamed == whole.audio,
        "several": sum(several) > 10_000,
        "voices": "voice_name" in config.model_config[0].parameters,
        "dictionary": len(service.synthesize("Hello zzyx.", custom_dictionary={"zzyx": "there"}, **rate).audio) > 10_000,
        "refused": refused(text=TEXT, voice_name="nobody"),
    }
    print(json.dumps(results), flush=True)


main()
