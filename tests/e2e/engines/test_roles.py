"""What a process of one role says, and what a start refuses of another deployment's."""

import json

import pytest
from tests.e2e.engines.deployment import SHARDS, Deployment

from qimd.ctl.exits import OK
from qimd.ctl.main import run


async def test_another_deployments_topic_is_refused(deployment: Deployment) -> None:
    """Each would drop the other's dispatches as stale: acknowledged, and delivered to nobody."""
    first = deployment.process("first", "mailbox")
    await first.start()
    other = deployment.process("other", "mailbox", "--deployment", f"{deployment.name}-other")
    told = await other.refuses()
    assert f"--dispatch-topic: {deployment.topic} is the log of the deployment" in told
    assert f"{deployment.name}, not of {deployment.name}-other" in told
    assert "delete qim.claims/logs/" in told
    assert other.exit_status == 2
    # Its own processes come as ever.
    await deployment.stop(first)
    await first.start()


@pytest.mark.parametrize(
    ("role", "kinds"),
    [("mailbox", {"mailbox"}), ("session", {"session"}), ("writer", None)],
)
async def test_shards_are_shown_by_the_roles_of_the_process_asked(
    role: str, kinds: set[str] | None, deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    process = deployment.process(role, role)
    await process.start()
    how = ("--address", process.grpc, "--admin-token", deployment.admin_token)
    code = run([*how, "shards", "-o", "jsonl"])
    told = capsys.readouterr()
    if kinds is None:
        assert code != OK
        assert "ask one of the role mailbox or session" in told.err
        return
    rows = [json.loads(line) for line in told.out.splitlines()]
    assert [row["kind"] for row in rows] == [*kinds] * SHARDS
