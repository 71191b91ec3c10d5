"""Generate: writes every committed file that is generated, or checks all of them. `python -m scripts.generate [--check]`

In:    configs/, the tables beside this file, the configuration models, Riva's .proto file, pypinyin and ChatTTS
Out:   the files, or exit code 1 and the names of those that differ; what an overlay cannot write
Never: Ray
"""

import argparse
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.json_format import MessageToJson
from grpc_tools import protoc

from scripts.generate import architecture_page, clients_page, k8s_config, monitoring, mounts, pinyin_table
from serve.commands.operate.config_reference import markdown

ROOT = Path(__file__).resolve().parents[2]
RIVA = ROOT / "serve/protocols/riva/riva_tts.proto"


def all_files() -> dict[Path, str]:
    """Returns path -> text of every generated file."""
    files = {ROOT / "docs/configuration-reference.md": markdown(), RIVA.with_suffix(".json"): riva_protocol()}
    return (
        files
        | architecture_page.files()
        | clients_page.files()
        | k8s_config.files()
        | monitoring.files()
        | pinyin_table.files()
    )


def riva_protocol() -> str:
    """Returns the descriptors of Riva's .proto file as JSON, which serve/protocols/riva/protocol.py makes messages of.

    Raises:
        RuntimeError: protoc refuses the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        descriptor_set = Path(folder) / "set"
        if protoc.main(["protoc", f"--proto_path={RIVA.parent}", f"--descriptor_set_out={descriptor_set}", RIVA.name]):
            raise RuntimeError(f"protoc refuses {RIVA}")
        described = FileDescriptorSet.FromString(descriptor_set.read_bytes())
    return f"{MessageToJson(described, indent=1)}\n"


def outdated(files: dict[Path, str]) -> list[Path]:
    """Returns the files that are missing or differ."""
    return [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Writes or checks the files; returns 1 if a checked file differs, or an overlay mounts read-only what is written."""
    parser = argparse.ArgumentParser(description="Write every generated file of the repository.")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a file would change")
    check = parser.parse_args().check
    files = all_files()
    changed = outdated(files)
    for path in changed:
        if not check:
            path.write_text(files[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'differs: run python -m scripts.generate' if check else 'written'}")
    print(f"{len(files) - len(changed)} of {len(files)} files were up to date")
    wrong = list(mounts.mistakes())
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return int((check and bool(changed)) or bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
