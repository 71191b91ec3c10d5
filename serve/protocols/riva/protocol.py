"""Riva protocol: the messages and methods of serve/protocols/riva/riva_tts.proto.

In:    riva_tts.json, which protoc made of it
Out:   classes of messages, what Serve adds to its gRPC server (`grpc_options.grpc_servicer_functions`), parsed requests
Owns:  a pool of descriptors: NVIDIA's own client may be loaded beside it
Never: what a method does: it is one of serve/deployments/ingress.py of the same name; a message that is read, or parsed, before
       its method asks for it: the key comes first
"""

from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.builder import BuildTopDescriptorsAndMessages
from google.protobuf.json_format import Parse
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import UInt32Value

from serve.errors import bad_request

SERVICE = "nvidia.riva.tts.RivaSpeechSynthesis"
HEALTH = "grpc.health.v1.Health"
"""what probes of Kubernetes and Envoy ask"""
MOST_FIELDS = 1000
"""of a message and of those in it"""

_POOL = DescriptorPool()
for _file in Parse(Path(__file__).with_name("riva_tts.json").read_text(encoding="utf-8"), FileDescriptorSet()).file:
    _POOL.Add(_file)
_BUILT: dict[str, Any] = {}
BuildTopDescriptorsAndMessages(_POOL.FindFileByName("riva_tts.proto"), __name__, _BUILT)

SynthesizeSpeechRequest: Any = _BUILT["SynthesizeSpeechRequest"]
SynthesizeSpeechResponse: Any = _BUILT["SynthesizeSpeechResponse"]
RivaSynthesisConfigRequest: Any = _BUILT["RivaSynthesisConfigRequest"]
RivaSynthesisConfigResponse: Any = _BUILT["RivaSynthesisConfigResponse"]


def parsed(kind: Any, data: bytes) -> Any:
    """Returns a message of a class, whose fields are counted before any is built.

    Raises:
        ApiError: 400
    """
    try:
        if _fields_in(data, kind.DESCRIPTOR, 0, len(data), 0) > MOST_FIELDS:
            raise bad_request("too_many_values", f"the message has more than {MOST_FIELDS} fields and entries: send fewer")
        return kind.FromString(data)
    except (DecodeError, IndexError):
        raise bad_request("invalid_request", f"the message is no {kind.DESCRIPTOR.name}") from None


def _fields_in(data: bytes, kind: Any, place: int, stop: int, count: int) -> int:
    """Returns `count` and the fields of a message, its inner ones too; it stops behind MOST_FIELDS."""
    while place < stop and count <= MOST_FIELDS:
        count += 1
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:
                _, place = _varint(data, place)
            case 1:
                place += 8
            case 2:
                size, place = _varint(data, place)
                inner = kind.fields_by_number.get(tag >> 3)
                if inner is not None and inner.message_type is not None:
                    count = _fields_in(data, inner.message_type, place, min(place + size, stop), count)
                place += size
            case 5:
                place += 4
    return count


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns a number and the place behind it.

    Raises:
        IndexError: the data ends before.
    """
    number = shift = 0
    while True:
        byte, place = data[place], place + 1
        number |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return number, place
        shift += 7


def add_RivaSpeechSynthesisServicer_to_server(servicer: Any, server: Any) -> None:
    """Adds the methods to a gRPC server. Each takes a stream of requests as bytes, which one request is too on the wire."""
    handlers = {}
    for method in _POOL.FindServiceByName(SERVICE).methods:
        kind = f"stream_{'stream' if method.server_streaming else 'unary'}_rpc_method_handler"
        handlers[method.name] = getattr(grpc, kind)(
            getattr(servicer, method.name), response_serializer=_BUILT[method.output_type.name].SerializeToString
        )
    check = grpc.stream_unary_rpc_method_handler(servicer.Check, response_serializer=UInt32Value.SerializeToString)
    for service, methods in ((SERVICE, handlers), (HEALTH, {"Check": check})):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_registered_method_handlers(service, methods)


def health(*, is_ready: bool) -> UInt32Value:
    """Returns the answer to a probe: HealthCheckResponse has one number, as UInt32Value has, 1 SERVING or 2 NOT_SERVING."""
    return UInt32Value(value=1 if is_ready else 2)
