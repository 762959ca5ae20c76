"""Broken builds that the simulator must see: each takes one rule of the design away.

A simulator that has never failed proves nothing. So each rule that a world is to hold to is broken
here, one at a time, by a patch of one function, and the seeds are run until one of them fails. A
mutant that lives through the seeds of a CI run is a hole in the simulator, and fails the gate.

A patch lasts for one world: what it remembers (`first`, say) never reaches the next one.
"""

from typing import Final

from tests.sim import mutants_reading as reading
from tests.sim import mutants_writing as writing
from tests.sim.mutant import Mutant

MUTANTS: Final = (
    Mutant("self-fence off", writing.self_fence_off),
    Mutant("a key's absence not awaited", writing.absence_not_awaited),
    Mutant("a record's log identity ignored", writing.log_identity_ignored),
    Mutant("checkpoint 1 off", writing.checkpoint_1_off),
    Mutant("checkpoint 2 off", reading.checkpoint_2_off),
    Mutant("checkpoint 2 in memory only", reading.checkpoint_2_in_memory),
    Mutant("epoch mark without its offset", reading.mark_without_its_offset),
    Mutant("progress before acks", writing.progress_before_acks),
    Mutant("outbox progress not fenced", writing.progress_not_fenced),
    Mutant("head version not compared", writing.head_version_not_compared),
    Mutant("inherited outbox not drained first", writing.inherited_outbox_not_drained_first),
    Mutant("epoch stamped from the old owner", writing.epoch_of_the_old_owner),
    Mutant("epoch lost in the codec", writing.epoch_lost_in_the_codec),
    Mutant("only the failed part of a run sent again", writing.failed_part_sent_again),
    Mutant("dedupe mark before entries", reading.dedupe_before_entries),
    Mutant("W past a failing block", reading.w_past_a_failing_block),
    Mutant("a lane overtaken in slow retry", reading.lane_overtaken),
    Mutant("recipients of a duplicate added twice", reading.duplicates_added_twice),
    Mutant("chunk size changed between commit and replay", writing.chunk_size_of_today),
    Mutant("a mailbox commit under an old term", reading.commit_under_an_old_term),
    Mutant("Unknown taken for failure", writing.unknown_taken_for_failure),
    Mutant("Unknown resolved by a read", writing.unknown_resolved_by_a_read),
    Mutant(
        "what was believed before a restart believed behind it", reading.belief_outlives_a_restart
    ),
    Mutant("push before W", reading.push_before_w),
    Mutant("presence after the first PULL", reading.presence_after_the_first_pull),
    Mutant("unread counted again on replay", reading.unread_counted_again),
    Mutant("member removed one event late", writing.member_removed_late),
    Mutant("cursor of another user accepted", reading.another_users_cursor),
)
