"""Labels: what a file says about itself beside its samples.

In:    titles, chapters, a picture
Out:   FileLabels; the kind and size of a picture
Never: decoding a picture
"""

import struct
from dataclasses import dataclass

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of frames

WIDEST = 16_000
"""largest side of a cover [pixels]; FFmpeg refuses pictures of more than 268 million"""


@dataclass(frozen=True, slots=True)
class FileLabels:
    """Tags, chapters and cover of a file; containers take what they have a place for."""

    title: str = ""
    author: str = ""
    chapters: tuple[tuple[str, int, int], ...] = ()
    """(title, first sample, stop)"""
    cover: bytes = b""
    """a JPEG or PNG picture; empty: none"""

    @property
    def tags(self) -> dict[str, str]:
        """The names that FFmpeg translates for each container."""
        named = {"title": self.title, "album": self.title, "artist": self.author, "album_artist": self.author}
        return {name: plain(value) for name, value in named.items() if value} | ({"genre": "Audiobook"} if self.title else {})


def plain(text: str) -> str:
    """Returns a text without control characters: FFmpeg's tags end at the first zero."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


@dataclass(frozen=True, slots=True)
class Picture:
    """The kind and size of a picture."""

    codec: str
    """mjpeg or png"""
    width: int
    height: int


def picture_of(content: bytes) -> Picture | None:
    """Returns what a picture is; None: neither JPEG nor PNG, or none that a file can show."""
    picture = None
    try:
        if content.startswith(b"\x89PNG\r\n\x1a\n"):
            picture = Picture("png", *struct.unpack(">II", content[16:24]))
        elif content.startswith(b"\xff\xd8"):
            picture = _jpeg(content)
    except (struct.error, IndexError):
        return None
    is_shown = picture is not None and 0 < picture.width <= WIDEST and 0 < picture.height <= WIDEST
    return picture if is_shown else None


def _jpeg(content: bytes) -> Picture | None:
    at = 2
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker in _JPEG_SIZES:
            height, width = struct.unpack(">HH", content[at + 5 : at + 9])
            return Picture("mjpeg", width, height)
        at += 2 + struct.unpack(">H", content[at + 2 : at + 4])[0]
    return None
