"""Riva protocol: the descriptors of serve/doors/riva/riva_tts.proto, by protoc.

In:    the .proto file
Out:   the same as JSON, which serve/doors/riva/protocol.py makes messages of
Owns:  nothing
Never: Ray
"""

import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.json_format import MessageToJson
from grpc_tools import protoc

FOLDER = Path(__file__).resolve().parents[2] / "serve/doors/riva"
PROTO = FOLDER / "riva_tts.proto"


def files() -> dict[Path, str]:
    """Returns path -> text of the generated file.

    Raises:
        RuntimeError: protoc refuses the .proto file.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "set"
        if protoc.main(["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={found}", PROTO.name]):
            raise RuntimeError(f"protoc refuses {PROTO}")
        described = FileDescriptorSet.FromString(found.read_bytes())
    return {PROTO.with_suffix(".json"): MessageToJson(described, indent=1) + "\n"}
