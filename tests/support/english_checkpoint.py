"""A checkpoint that speaks English and has no expression: the demo voice without Chinese, paces and laughs."""

import json
import re
import shutil
from pathlib import Path

from pipeline.checkpoint.capabilities import Capabilities, capabilities_file
from pipeline.checkpoint.layout import CAPABILITIES_FILE, TOKENIZER_FILE
from pipeline.checkpoint.locate import DEMO_FOLDER
from pipeline.checkpoint.manifest import file_sha256, read_manifest, write_manifest
from pipeline.spec import PAUSE_TAGS

ENGLISH = Capabilities(languages=("en",), control_tags=PAUSE_TAGS, speed_tokens=False, refine=False)
CHINESE_TOKEN = re.compile("[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")


def write_english_checkpoint(folder: Path) -> None:
    """Writes it; tokens that no text has stand for the Chinese ones, so all others keep their rows."""
    shutil.copytree(DEMO_FOLDER, folder)
    tokenizer = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    is_chinese = CHINESE_TOKEN.match
    tokenizer["model"]["vocab"] = {f"no text {row}" if is_chinese(token) else token: row for token, row in vocabulary.items()}
    (folder / TOKENIZER_FILE).write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / CAPABILITIES_FILE).write_bytes(capabilities_file(ENGLISH))
    write_manifest(folder, {file: file_sha256(folder / file) for file in read_manifest(DEMO_FOLDER) or ()})
