"""Document: the text of a job, as a client sends it, becomes parts in a process of its own.

In:    Questions: a text, turns, the bytes of a file
Out:   Documents
Owns:  the processes that read, at most AT_ONCE of them, and their threads
Never: reading a client's document in this process
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pipeline.books.question import CPU_LIMIT_S, MEMORY_LIMIT, Document, Question, document_of
from pipeline.child import ChildFailed, WarmChild
from pipeline.errors import AtCapacity, InvalidDocument

READER = "pipeline.books.reader"
TIMEOUT_S = 60.0
AT_ONCE = 2  # documents in one process
MOST_IN_HAND = 32  # of which the others wait to be read or planned
RETRY_AFTER_S = 5.0


class DocumentReader:
    """Reads documents of clients, a few at a time; a bounded number of others waits."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "documents")
        self._readers = [WarmChild(READER, timeout_s=TIMEOUT_S) for _ in range(AT_ONCE)]
        self._in_hand = 0

    @contextmanager
    def in_hand(self) -> Iterator[None]:
        """Counts a document until the block ends, in which it is read and planned.

        Raises:
            AtCapacity: there are too many others.
        """
        if self._in_hand >= MOST_IN_HAND:
            raise AtCapacity(f"the texts of {MOST_IN_HAND} jobs are being read and planned", retry_after_s=RETRY_AFTER_S)
        self._in_hand += 1
        try:
            yield
        finally:
            self._in_hand -= 1

    async def read(self, question: Question) -> Document:
        """Returns what a document says.

        Raises:
            InvalidRequest: it is not what it is said to be, or beyond the limits.
            AtCapacity: the machine has no room for a process.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, question)

    def _read(self, question: Question) -> Document:
        reader = self._readers.pop()  # the one that answered last: others may end
        try:
            return document_of(reader.ask(question.to_bytes()))
        except ChildFailed:
            limits = f"{CPU_LIMIT_S} s of processor time, {TIMEOUT_S:.0f} s in all and {MEMORY_LIMIT >> 20} MiB of memory"
            raise InvalidDocument(
                f"the document has {len(question.content)} bytes and could not be read within {limits}: send it in smaller "
                "pieces, or as plain text",
                param="input" if question.file is None else "file",
            ) from None
        except OSError as error:
            message = f"no document can be read at this moment ({error.strerror}); try again"
            raise AtCapacity(message, retry_after_s=RETRY_AFTER_S) from error
        finally:
            self._readers.append(reader)


DOCUMENTS = DocumentReader()
"""of this process; nothing is started before the first document"""
