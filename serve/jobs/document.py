"""Document: a file that a client sends as the text of a job.

In:    the bytes of an EPUB, or of a text
Out:   a Book, or the text
Owns:  the number of books that are read at this moment
Never: reading an EPUB in this process
"""

from pipeline.books.book import Book
from pipeline.books.epub import book_of
from pipeline.child import ChildFailed, ask_child
from pipeline.errors import AtCapacity, InvalidDocument

READER = "pipeline.books.epub"
TIMEOUT_S = 60.0
AT_ONCE = 2  # books in one ingress replica
EPUB = ".epub"
_ZIP = b"PK\x03\x04"


class DocumentReader:
    """Reads files of clients, a few at a time."""

    def __init__(self) -> None:
        self._reading = 0

    async def read(self, content: bytes, name: str = "") -> Book | str:
        """Returns the book of an EPUB, and the text of any other file.

        Args:
            name: of the file; empty: it has none.

        Raises:
            InvalidDocument: it is neither an EPUB nor a text in UTF-8.
            AtCapacity: others are being read, or the machine has no room for a process.
        """
        if not content.startswith(_ZIP):
            if name.lower().endswith(EPUB):
                message = "not an EPUB: the file does not begin like an archive; a text has a name that ends otherwise"
                raise InvalidDocument(message, param="file")
            try:
                return content.decode("utf-8-sig")
            except UnicodeDecodeError:
                raise InvalidDocument("the file is neither an EPUB nor text in UTF-8", param="file") from None
        if self._reading >= AT_ONCE:
            raise AtCapacity(f"{AT_ONCE} books are being read; wait for one", retry_after_s=2.0)
        self._reading += 1
        try:
            return book_of(await ask_child(READER, content, timeout_s=TIMEOUT_S))
        except (ChildFailed, TimeoutError):
            message = "the EPUB could not be read within its limits of memory and time"
            raise InvalidDocument(message, param="file") from None
        except OSError as error:
            message = f"no book can be read at this moment ({error.strerror}); try again"
            raise AtCapacity(message, retry_after_s=5.0) from error
        finally:
            self._reading -= 1
