"""Paging through a list whose items move while it is read: neither skipped nor doubled.

Items are ordered by (activity, conversation_id), the largest first, and can only move up. A key
alone can't page such a list: an item that moves from below the key to above it would be skipped,
one that was shown and moves is above the key and harmless. So the server keeps, for each listing,
what it has shown, pages downwards by key, and at the bottom looks at the whole list once more, in
one read, for what has not been shown yet. That read is a snapshot: when nothing in it is new, every
conversation of the list has been shown exactly once.

A page token is a random id of the listing and the number of the page. The page before the last can
be asked for again (its answer may have been lost): the listing remembers what it added.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from qimd.core.errors import QimError, invalid
from qimd.core.parameters import SESSION_PAGE_DEFAULT, SESSION_PAGE_MAX
from qimd.core.records import UserKey
from qimd.ports.projection import PagePosition, SessionRow

LISTING_ID_BYTES: Final = 16
_TOKEN_BYTES: Final = LISTING_ID_BYTES + 4


def page_limit(limit: int) -> int:
    """How many items a page holds. Raises QimError(INVALID_ARGUMENT) above 200."""
    if not 0 <= limit <= SESSION_PAGE_MAX:
        raise invalid(f"limit is {limit}; at most {SESSION_PAGE_MAX} are allowed", "limit")
    return limit or SESSION_PAGE_DEFAULT


def bad_token() -> QimError:
    """The refusal of a page token that is none, or whose listing has expired."""
    return invalid("page_token is not one, or has expired: start again from the first page",
                   "page_token")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageToken:
    """A place in a listing: the page with this number, from 0, comes next."""

    listing_id: bytes
    page: int

    @property
    def text(self) -> bytes:
        """The opaque bytes that a client carries."""
        return self.listing_id + self.page.to_bytes(4, "big")

    @classmethod
    def parse(cls, token: bytes) -> "PageToken":
        """Raises QimError(INVALID_ARGUMENT) for other bytes than `text` gives."""
        if len(token) != _TOKEN_BYTES:
            raise bad_token()
        return cls(token[:LISTING_ID_BYTES], int.from_bytes(token[LISTING_ID_BYTES:], "big"))


@dataclass(slots=True)
class Listing:
    """One client's way through its list."""

    user: UserKey
    shown: dict[str, None] = field(default_factory=dict)
    """The conversations of the pages before."""
    below: PagePosition | None = None
    """Where the way down goes on; None at the top."""
    bottom: bool = False
    """The way down is done; what is left is found by snapshots."""
    page: int = 0
    undo: tuple[tuple[str, ...], PagePosition | None, bool] = ((), None, False)
    """What the last page added, and where it began."""

    def turn_to(self, page: int) -> None:
        """Be ready to give this page: the next one, or the last one again.

        Raises QimError(INVALID_ARGUMENT) for any other.
        """
        if page == self.page:
            return
        if page != self.page - 1:
            raise bad_token()
        added, self.below, self.bottom = self.undo
        for conversation in added:
            del self.shown[conversation]
        self.page = page

    def new_of(self, rows: Sequence[SessionRow]) -> list[SessionRow]:
        """Those of the rows that were not shown."""
        return [row for row in rows if row.key.conversation not in self.shown]

    def give(self, rows: Sequence[SessionRow], below: PagePosition | None, bottom: bool) -> None:
        """Take the rows for shown: they are the page."""
        added = tuple(row.key.conversation for row in rows)
        self.undo = (added, self.below, self.bottom)
        self.shown.update(dict.fromkeys(added))
        self.below, self.bottom = below, bottom
        self.page += 1


@dataclass(slots=True)
class _Held:
    listing: Listing
    used_at_s: float


class Listings:
    """The listings under way: a bounded number, each for a bounded time since its last page."""

    def __init__(self, listings_max: int, expiry_s: float) -> None:
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._max = listings_max
        self._expiry_s = expiry_s

    def __len__(self) -> int:
        return len(self._held)

    def find(self, user: UserKey, token: PageToken, now_s: float) -> Listing:
        """The user's listing. Raises QimError(INVALID_ARGUMENT) if it isn't there (any more)."""
        self._expire(now_s)
        held = self._held.get(token.listing_id)
        if held is None or held.listing.user != user:
            raise bad_token()
        return held.listing

    def keep(self, listing_id: bytes, listing: Listing, now_s: float) -> None:
        """Hold a listing for its next page; the longest unused one gives way."""
        self._held[listing_id] = _Held(listing, now_s)
        self._held.move_to_end(listing_id)
        while len(self._held) > self._max:
            self._held.popitem(last=False)

    def _expire(self, now_s: float) -> None:
        while self._held:
            oldest = next(iter(self._held.values()))
            if now_s - oldest.used_at_s < self._expiry_s:
                return
            self._held.popitem(last=False)


def position_of(row: SessionRow) -> PagePosition:
    """The row's place."""
    return PagePosition(row.activity_ms, row.key.conversation)
