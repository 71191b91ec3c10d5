"""Errors: the tree of everything that can go wrong; serve/errors.py gives each its HTTP status.

SynthesisError
|-- InvalidRequest            the client can fix it
|   |-- TextTooLong
|   |-- NoSpeakableText
|   |-- PartlyUnspeakable     the checkpoint cannot speak all of the text, and the request is strict
|   |-- UnknownVoice
|   |-- UnsupportedFormat
|   |-- ReadOnlyVoice         it is built in
|   |-- NotTheOwner           it belongs to another key
|   |-- ShareUsedUp           one key keeps no more of it
|   |-- ReferenceRejected     a recording is not good enough to be a voice
|   |-- InvalidSsml
|   |-- InvalidDocument       a book cannot be read
|   |-- InvalidLexicon
|   |-- UnknownLexicon
|   |-- RefineRejected        the refine pass changed the words, and the guard is strict
|   |-- TextTooHard           reading it took more than its share of time
|   |-- RequestQuarantined    replicas that worked on it have died
|   |-- NotCached             the request takes cached audio only
|   `-- Conflict              the stored state is not the one the request expects
|       `-- VoiceExists
|-- AtCapacity                try again after retry_after_s
|   `-- DeadlineUnmeetable    there is capacity, but not in time
|-- Draining                  this part of the service is about to stop
|-- StageUnavailable          a stage fails; try again after retry_after_s
|-- StageAsleep               a stage has no replica and is being woken; try again after retry_after_s
|-- DeadlineExceeded          the time of the request is over
|-- ReaderStalled             the client read nothing for too long
|-- StoreUnavailable          nothing can be stored now; records already read stay usable
|   `-- StoreFull             nor later, until space is freed
|-- AudioFault                an encoder or a filter failed; the engine is well
`-- EngineFault               a fault of the service
    |-- NonFiniteOutput       one sequence ends, the engine lives
    `-- EngineDead            the health check fails, the replica is replaced
        `-- WorkerDied        a child process of the replica, which is replaced already
ConfigError                   a file the operator wrote is wrong
CheckpointError               a checkpoint on disk is not what it claims to be
OutOfMemory                   a model does not fit into memory

Out:   exceptions that survive pickling with their attributes
Never: HTTP statuses; a client's text in a message

Every message says what was given, what is allowed and what to do.
"""


class SynthesisError(Exception):
    """Base of everything that ends a request. `param` names the request field at fault, if there is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders; the default rebuilds from `args` alone and would lose the attributes.
        return _rebuild, (type(self), self.message, dict(self.__dict__))


def _rebuild(kind: type[SynthesisError], message: str, state: dict[str, object]) -> SynthesisError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class InvalidRequest(SynthesisError):
    """The client can fix the request."""


class TextTooLong(InvalidRequest):
    """More text than the limit."""


class NoSpeakableText(InvalidRequest):
    """No word is left once the text is cleaned."""


class PartlyUnspeakable(InvalidRequest):
    """The checkpoint cannot speak all of the text, and the request is strict."""


class UnknownVoice(InvalidRequest):
    """No such voice."""


class UnsupportedFormat(InvalidRequest):
    """No such container, rate or combination."""


class InvalidSsml(InvalidRequest):
    """Not a document of the SSML subset, or too large a one."""


class InvalidDocument(InvalidRequest):
    """A book that is not what it claims to be, protected, or too large."""


class InvalidLexicon(InvalidRequest):
    """A lexicon entry is malformed."""


class UnknownLexicon(InvalidRequest):
    """No such lexicon."""


class RefineRejected(InvalidRequest):
    """The refine pass lost, changed or invented a word, and the request's guard is strict."""


class TextTooHard(InvalidRequest):
    """Normalising the text took more processor time than a text may take."""


class RequestQuarantined(InvalidRequest):
    """Replicas that worked on the request have died; it is refused for a time."""


class NotCached(InvalidRequest):
    """The request takes cached audio only, and there is no entry."""


class Conflict(InvalidRequest):
    """The stored state is not the one the request expects."""


class VoiceExists(Conflict):
    """The name is taken."""


class ReadOnlyVoice(InvalidRequest):
    """The voice is built in, or fully described by its name."""


class NotTheOwner(InvalidRequest):
    """The record belongs to another key."""


class ShareUsedUp(InvalidRequest):
    """The key keeps as many records, or as many bytes, as one key may."""


class ReferenceRejected(InvalidRequest):
    """A recording is not good enough to become a voice; the message has every reason."""


class AtCapacity(SynthesisError):
    """All slots and waiting places are taken."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.replica = ""
        """the unique name of the replica that refuses; empty: none does, or it is not known"""


class Draining(SynthesisError):
    """This part of the service is about to stop and accepts nothing new; another replica may."""


class StageUnavailable(SynthesisError):
    """A stage fails; its circuit breaker is open."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StageAsleep(SynthesisError):
    """A stage that may have no replica has none; one is being started."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineUnmeetable(AtCapacity):
    """The request's first audio, or that of an admitted one, would miss its promised time."""


class DeadlineExceeded(SynthesisError):
    """The request's time is over."""


class ReaderStalled(SynthesisError):
    """The client read no audio for the stated time."""


class StoreUnavailable(SynthesisError):
    """The store does not answer: nothing can be stored now, records already read stay usable.

    `message` is for clients. str() is for operators: it names the place of the store as well.
    """

    def __init__(self, message: str, *, place: str = "", outcome_unknown: bool = False) -> None:
        """
        Args:
            outcome_unknown: a write whose answer did not come: it may have happened. Whoever sent it reads before it says so.
        """
        super().__init__(message)
        self.place = place
        self.outcome_unknown = outcome_unknown

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class StoreFull(StoreUnavailable):
    """The store's disk or memory is full."""


class AudioFault(SynthesisError):
    """An encoder or a filter of the audio failed; the engine is well."""


class EngineFault(SynthesisError):
    """A fault of the service, not of the request."""


class NonFiniteOutput(EngineFault):
    """The model produced NaN or infinity for this sequence alone."""


class EngineDead(EngineFault):
    """The engine's loop has died or hangs; the replica is replaced."""


class OtherBuild(EngineDead):
    """What was delivered comes from another build of the model than that of `replica`: `build`; both empty: it is not known."""

    def __init__(self, message: str, *, replica: str = "", build: str = "") -> None:
        super().__init__(message)
        self.replica = replica
        self.build = build


class WorkerDied(EngineDead):
    """A child process of the replica ended before it answered. `worker` is its unique name."""

    def __init__(self, message: str, *, worker: str = "") -> None:
        super().__init__(message)
        self.worker = worker


class ConfigError(Exception):
    """A configuration file is wrong: the message has the key's path, what was found and what is allowed."""


class CheckpointError(Exception):
    """A checkpoint is wrong: the message has the file, what was expected and what was found."""


class OutOfMemory(Exception):
    """A model does not fit into memory: the message says which, and what to do."""
