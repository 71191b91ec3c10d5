"""Riva protocol: the messages and methods of serve/doors/riva/riva_tts.proto.

In:    riva_tts.json, which protoc made of it
Out:   classes of messages, and what Serve adds to its gRPC server (`grpc_options.grpc_servicer_functions`)
Owns:  a pool of descriptors: NVIDIA's own client may be loaded beside it
Never: what a method does: it is one of serve/deployments/ingress.py of the same name
"""

from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.builder import BuildTopDescriptorsAndMessages
from google.protobuf.json_format import Parse

SERVICE = "nvidia.riva.tts.RivaSpeechSynthesis"

_POOL = DescriptorPool()
for _file in Parse(Path(__file__).with_name("riva_tts.json").read_text(encoding="utf-8"), FileDescriptorSet()).file:
    _POOL.Add(_file)
_BUILT: dict[str, Any] = {}
BuildTopDescriptorsAndMessages(_POOL.FindFileByName("riva_tts.proto"), __name__, _BUILT)

# Messages are pickled on their way from Serve's proxy to a replica, which finds their classes by these names.
SynthesizeSpeechRequest: Any = _BUILT["SynthesizeSpeechRequest"]
SynthesizeSpeechResponse: Any = _BUILT["SynthesizeSpeechResponse"]
RivaSynthesisConfigRequest: Any = _BUILT["RivaSynthesisConfigRequest"]
RivaSynthesisConfigResponse: Any = _BUILT["RivaSynthesisConfigResponse"]


def add_RivaSpeechSynthesisServicer_to_server(servicer: Any, server: Any) -> None:
    """Adds the methods to a gRPC server, as the functions that grpcio-tools generates do."""
    handlers = {}
    for method in _POOL.FindServiceByName(SERVICE).methods:
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        handlers[method.name] = getattr(grpc, f"{kind}_rpc_method_handler")(
            getattr(servicer, method.name),
            request_deserializer=_BUILT[method.input_type.name].FromString,
            response_serializer=_BUILT[method.output_type.name].SerializeToString,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)
