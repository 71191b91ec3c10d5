"""Errors: the one tree of what can go wrong. The domain knows no HTTP; serve/errors.py gives each a status.

SynthesisError
|-- InvalidRequest            the client can fix it
|   |-- TextTooLong
|   |-- NoSpeakableText
|   |-- PartlyUnspeakable     the checkpoint does not know all of the text, and the client wants to know
|   |-- UnknownVoice
|   |-- UnsupportedFormat
|   |-- ReadOnlyVoice         it is built in
|   |-- ReferenceRejected     a recording is not good enough to be a voice
|   |-- InvalidSsml
|   |-- InvalidLexicon
|   |-- UnknownLexicon
|   |-- RefineRejected        the refine pass wrote something else, and the client wants to know
|   |-- TextTooHard           reading it took more than its share of time
|   |-- RequestQuarantined    it has ended replicas
|   |-- NotCached             the request takes nothing that has to be made
|   `-- Conflict              what is there is not what the request takes for granted
|       `-- VoiceExists
|-- AtCapacity                try again after retry_after_s
|   `-- DeadlineUnmeetable    there is room, but not in time
|-- Draining                  about to stop
|-- StageUnavailable          the same, because a stage fails
|-- DeadlineExceeded          we were too slow
|-- ReaderStalled             the reader took nothing for too long
|-- StoreUnavailable          nothing can be kept right now, what is known goes on working
|   `-- StoreFull             nor later, until somebody makes room
`-- EngineFault               our fault
    |-- NonFiniteOutput       one sequence ends, the engine lives
    `-- EngineDead            the health check fails, the replica is replaced
        `-- WorkerDied        only a process that worked for the replica, and it is replaced already
ConfigError                   a file the operator wrote is wrong
CheckpointError               a checkpoint on disk is not what it claims to be
OutOfMemory                   what is loaded does not fit

Every message says what was given, what is allowed and what to do. None ever quotes a client's text.
"""


class SynthesisError(Exception):
    """Anything that ends a request. `param` names the request field at fault, if one is."""

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
    """The client can fix it."""


class TextTooLong(InvalidRequest):
    """More text than the limit."""


class NoSpeakableText(InvalidRequest):
    """Nothing is left to say once the text is cleaned."""


class PartlyUnspeakable(InvalidRequest):
    """The checkpoint does not know all of the text, and the request asked to be told."""


class UnknownVoice(InvalidRequest):
    """No such voice."""


class UnsupportedFormat(InvalidRequest):
    """No such container, rate or combination."""


class InvalidSsml(InvalidRequest):
    """Not a document of the SSML subset, or too large a one."""


class InvalidLexicon(InvalidRequest):
    """An entry nobody can read."""


class UnknownLexicon(InvalidRequest):
    """No such lexicon."""


class RefineRejected(InvalidRequest):
    """The refine pass lost, changed or invented a word, and the request asked to be told."""


class TextTooHard(InvalidRequest):
    """Reading the text took more than its share of time."""


class RequestQuarantined(InvalidRequest):
    """Replicas that worked on it have died; it is kept from more of them for a time."""


class NotCached(InvalidRequest):
    """The request takes nothing that has to be made, and it is not there."""


class Conflict(InvalidRequest):
    """What is there is not what the request takes for granted."""


class VoiceExists(Conflict):
    """The name is taken."""


class ReadOnlyVoice(InvalidRequest):
    """It is built in, or a name that says everything."""


class ReferenceRejected(InvalidRequest):
    """A recording is not good enough to be a voice; the message has every reason."""


class AtCapacity(SynthesisError):
    """Every place, waiting places included, is taken."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Draining(SynthesisError):
    """This part of the service is about to stop and begins nothing new; another one may."""


class StageUnavailable(SynthesisError):
    """A stage fails and is left alone for a moment."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineUnmeetable(AtCapacity):
    """Whoever comes now would be heard later than promised, or make somebody else be."""


class DeadlineExceeded(SynthesisError):
    """The request's time is over."""


class ReaderStalled(SynthesisError):
    """Nobody took the audio for the stated time."""


class StoreUnavailable(SynthesisError):
    """The store does not answer: nothing can be kept right now, what is known goes on working.

    `message` is for clients. str() is for operators: it names the place of the store as well.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class StoreFull(StoreUnavailable):
    """The store has no room left."""


class EngineFault(SynthesisError):
    """Our fault."""


class NonFiniteOutput(EngineFault):
    """The model produced NaN or infinity for this sequence alone."""


class EngineDead(EngineFault):
    """The engine's loop has died or hangs."""


class WorkerDied(EngineDead):
    """A process that worked for the replica has ended, and with it what it was asked. `worker` names it, and no other one."""

    def __init__(self, message: str, *, worker: str = "") -> None:
        super().__init__(message)
        self.worker = worker


class ConfigError(Exception):
    """A configuration file is wrong: the message has the key's path, what was found and what is allowed."""


class CheckpointError(Exception):
    """A checkpoint is wrong: the message has the file, what was expected and what was found."""


class OutOfMemory(Exception):
    """What is loaded does not fit into memory: the message says what, and what to do."""
