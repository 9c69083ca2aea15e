"""The one error tree. Every foreign error is mapped to one of these where it is met.

RecapError                 message = one line: what is wrong, and the way out
├── UsageError             the caller asked for something that cannot be (exit code 2)
├── ModelError             a model that cannot be found, loaded or used here (exit code 1)
│   ├── UnsupportedModel   a family that cannot verify a draft tree, or that we do not know
│   ├── UncompilableModel  passes that a compiler does not take; they run as they are
│   └── UnbuildableOperators  operators in C++ that cannot be built; passes go without
├── RequestError           this request cannot be answered; others can (exit code 1)
│   ├── ImageError         a picture that cannot be opened, decoded or taken by the model
│   ├── PromptError        a prompt or conversation that the model's template cannot take
│   └── ContextError       more tokens than the model's context holds
├── TranscriptError        a conversation's file that cannot be written, read or restored (exit 1)
└── MemoryFileError        the token memory's file; never fatal for an answer
    ├── CorruptMemory      not a memory file, or cut short
    └── ForeignMemory      a sound file of another tokenizer or a newer format version
"""


class RecapError(Exception):
    """Anything that `recap` can explain in one line."""


class UsageError(RecapError):
    """Wrong options or arguments."""


class ModelError(RecapError):
    """A model cannot be found, loaded or used on this machine."""


class UnsupportedModel(ModelError):
    """A model family that cannot verify a draft tree, or that is not known."""


class UncompilableModel(ModelError):
    """A compiler does not take a model's passes, or cannot build what they need."""


class UnbuildableOperators(ModelError):
    """Operators in C++ cannot be built or loaded here."""


class RequestError(RecapError):
    """One request failed; the session is as good as before."""


class ImageError(RequestError):
    """A picture cannot be opened, decoded, or taken by the model."""


class PromptError(RequestError):
    """The prompt or conversation cannot be put into the model's chat template."""


class ContextError(RequestError):
    """The request needs more tokens than the model's context holds."""


class TranscriptError(RecapError):
    """A conversation's file cannot be written, read, or restored with its pictures."""


class MemoryFileError(RecapError):
    """The token memory's file cannot be used; the answer does not depend on it."""


class CorruptMemory(MemoryFileError):
    """The file is not a token memory, or was cut short."""


class ForeignMemory(MemoryFileError):
    """A sound file, but of another tokenizer or of a newer format version."""
