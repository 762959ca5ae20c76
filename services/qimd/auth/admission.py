"""Admission without limits: what the development tenant's policy asks for (design section 10)."""

from qimd.core.records import ConversationKey, UserKey


class OpenAdmission:
    """`ports.services.Admission` that says yes."""

    async def admit(
        self, sender: UserKey, key: ConversationKey, events: int, reactions: int
    ) -> None:
        """Admit."""
