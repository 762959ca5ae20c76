"""The README's client, as it stands there: who pastes it must see it work."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.support.dev import DevServer
from tests.e2e.support.tenancy import Tenancy

README = Path(__file__).parents[2] / "README.md"
LINES = 15


def client_block() -> str:
    """The first block of Python in the README."""
    found = re.search(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, "the README has no Python block"
    return found[1]


def test_the_client_has_15_lines() -> None:
    written = [line for line in client_block().splitlines() if line.strip()]
    assert len(written) <= LINES


def test_the_client_uses_what_the_sdk_exports_alone() -> None:
    modules = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(client_block()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert modules <= {"asyncio", "os", "qimd.client"}


def test_the_client_sends_and_receives_on_a_fresh_server(tmp_path: Path) -> None:
    with DevServer(tmp_path / "data") as server:
        tenancy = Tenancy(server)
        made = tenancy.qimctl("conversation", "create", "hello", "--member", "alice")
        assert made.returncode == 0, made.stderr
        token = tenancy.qimctl("token", "--user", "alice")
        assert token.returncode == 0, token.stderr
        script = tmp_path / "client.py"
        script.write_text(client_block())
        environment = {
            **os.environ,
            "QIM_ADDRESS": server.grpc,
            "QIM_TOKEN": token.stdout.decode().strip(),
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "alice Hello from Python\n"
