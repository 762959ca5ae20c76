"""What people were told: each message's tries, and the answers on which somebody may rely.

An answer is one of three: accepted (durable, for good), definite ("nothing was written", and then
nothing may ever appear), or neither (a timeout, a broken stream, an outcome that the server does
not know). The final check holds the store to all of them.
"""

from dataclasses import dataclass, field

from qimd.core.errors import ErrorCode, QimError
from qimd.core.records import Accepted, ConversationKey

_DEFINITE = frozenset({ErrorCode.NOT_OWNER, ErrorCode.NOT_MEMBER, ErrorCode.INVALID_ARGUMENT})


@dataclass(slots=True)
class Said:
    """A message or reaction that somebody wanted to send, under one client_msg_id."""

    key: ConversationKey
    user: str
    client_msg_id: str
    body: bytes
    accepted: Accepted | None = None
    open_tries: int = 0
    """Tries of which nobody knows what came of them."""


@dataclass(slots=True)
class Ledger:
    """All of it. `complaints` are answers that contradict one another."""

    said: list[Said] = field(default_factory=list)
    marks: dict[tuple[str, str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """(tenant, user, conversation) → (asked, answered or -1) of each MARK_READ."""

    def answered(self, said: Said, answer: Accepted | QimError | None) -> str | None:
        """Note an answer, or that there was none; what is wrong with it, if something is."""
        if isinstance(answer, Accepted):
            first = said.accepted
            said.accepted = answer
            if first is not None and (first.event_id, first.conversation_seq) != (
                answer.event_id,
                answer.conversation_seq,
            ):
                return f"{said.client_msg_id} was accepted twice: as {first} and as {answer}"
        elif not (answer is not None and is_definite(answer)):
            said.open_tries += 1
        return None


def is_definite(error: QimError) -> bool:
    """Whether the error says that nothing was written."""
    return error.code in _DEFINITE or "nothing was written" in error.message
