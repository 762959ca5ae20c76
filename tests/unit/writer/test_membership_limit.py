"""A conversation of 100,000 members, grown by the writer itself.

Without its dispatch: on a server, telling every member of each of 100 changes makes five million
mailbox entries, which takes minutes and shows nothing of this limit.
"""

import pytest
from tests.support.runtime import ManualRuntime
from tests.unit.writer.world import ANN, CID, ROOM, TENANT, Silent, World

from qimd.core.errors import ErrorCode, QimError
from qimd.core.parameters import CONVERSATION_MEMBERS_MAX, MEMBERSHIP_CHANGE_USERS_MAX


async def test_a_conversation_takes_100_000_members_and_not_one_more() -> None:
    async with ManualRuntime() as runtime:
        world = World(runtime)
        node = await world.node(fanout=Silent())
        await node.serve()
        await world.tenant(node)
        await node.writer.create_conversation(TENANT, ROOM, [])
        for start in range(0, CONVERSATION_MEMBERS_MAX, MEMBERSHIP_CHANGE_USERS_MAX):
            numbers = range(start, start + MEMBERSHIP_CHANGE_USERS_MAX)
            await node.writer.add_members(TENANT, ROOM, [f"u{number}" for number in numbers])
        full = await node.state()
        assert full.member_count == CONVERSATION_MEMBERS_MAX

        with pytest.raises(QimError) as refused:
            await node.writer.add_members(TENANT, ROOM, [ANN])
        assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_ARGUMENT, "user_ids")
        assert await node.state() == full

        # Who is a member already takes no place, and who leaves makes one.
        assert (await node.writer.add_members(TENANT, ROOM, ["u0"])).conversation_seq == 0
        await node.writer.remove_members(TENANT, ROOM, ["u0"])
        added = await node.writer.add_members(TENANT, ROOM, [CID])
        assert added.state.member_count == CONVERSATION_MEMBERS_MAX
