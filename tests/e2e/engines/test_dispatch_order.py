"""R-2: the outbox's progress is stored behind the durable dispatches, and nothing else orders them.

Killed between the two, the next owner dispatches again: absorbed, nothing missing. While a part of
a batch is not durable, progress does not move at all.
"""

from collections.abc import Callable
from pathlib import Path

from tests.e2e.engines.builds import journal, throw
from tests.e2e.engines.deployment import Deployment, owned_by, until
from tests.e2e.engines.traffic import Traffic

from qimd.app.demo_verdict import Verdict

SERVICES = Path(__file__).parents[3] / "services"


async def test_killed_between_durable_dispatches_and_progress_nothing_is_missing(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    writer = steady.process("writer", "writer", build=("dies-before-progress",))
    await writer.start()
    heir = steady.process("heir", "all")
    await heir.start()
    steady.lead_to(heir)
    traffic = Traffic(steady)
    await traffic.set_up()
    async with traffic.flowing():
        await traffic.more()
        await steady.count(writer)
        throw(steady.folder, "die")
        await writer.ended()
        await owned_by(heir, "writer")
        await traffic.more()
    shown(await traffic.verify())
    assert journal(steady.folder)[-1]["rooms"]
    # Those events were in the log already, and came once more.
    assert heir.total("duplicates_total") > 0


async def test_progress_does_not_move_while_a_part_of_a_batch_is_not_durable(
    steady: Deployment, shown: Callable[[Verdict], None]
) -> None:
    build = ("half-dispatches", "journal")
    writer = steady.process("writer", "writer", build=build)
    await writer.start()
    heir = steady.process("heir", "all")
    await heir.start()
    steady.lead_to(heir)
    traffic = Traffic(steady)
    await traffic.set_up()
    await traffic.settle()
    throw(steady.folder, "half")
    # Acknowledged, since it is committed: that is all a sender is told.
    await traffic.say()
    noted = journal(steady.folder)
    heads = {line["room"] for line in noted if line["step"] == "commit"}
    assert heads == set(traffic.rooms)

    def half_tries() -> int:
        tries = [line for line in journal(steady.folder) if line["step"] == "half"]
        return sum(line["records"] > 1 for line in tries)

    await until(lambda: half_tries() >= 3, "a part of a batch fails again and again")
    behind = journal(steady.folder)[_first_half(steady) :]
    assert not [line for line in behind if line["step"] == "advance"]
    await steady.kill(writer)
    behind = journal(steady.folder)[_first_half(steady) :]
    assert not [line for line in behind if line["step"] == "advance"]
    await owned_by(heir, "writer")
    shown(await traffic.verify())
    # The first record of each try was in the log.
    assert heir.total("duplicates_total") > 0


def _first_half(steady: Deployment) -> int:
    steps = [line["step"] for line in journal(steady.folder)]
    return steps.index("half")


async def test_nothing_asks_for_a_transactional_id() -> None:
    """All processes of these tests start without one: `Process.spawn` clears QIM_ variables."""
    asked = [
        str(path.relative_to(SERVICES))
        for path in SERVICES.rglob("*")
        if path.suffix in {".py", ".lua", ".md"}
        and "transactional_id" in path.read_text().lower().replace(".", "_").replace("-", "_")
    ]
    assert asked == []
