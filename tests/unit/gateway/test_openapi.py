"""schemathesis holds the gateway to its own description: every answer to what it makes up is one that is described."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.unit.gateway.rig import running

CONFIG = Path(__file__).with_name("schemathesis.toml")
SEED = "7"  # the same requests in every run; another one is worth a try by hand
EXAMPLES = "40"  # for each operation: the whole takes some seconds


async def test_schemathesis_finds_no_answer_that_the_description_does_not_allow(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("tester secret\n")
    async with running(token_file=tokens, token="secret") as rig:
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run"]
        command += [
            "--checks",
            "all",
            "--max-examples",
            EXAMPLES,
            "--seed",
            SEED,
            "--no-color",
            "--continue-on-failure",
        ]
        command += ["-H", "Authorization: Bearer secret", f"{rig.url}/openapi.json"]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=tmp_path,
            env={**os.environ, "NO_PROXY": "127.0.0.1", "SCHEMATHESIS_HOOKS": ""},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        text = output.decode()
        assert process.returncode == 0, text
        assert "No issues found" in text or "passed" in text, text
        called = sum(len(server.calls) for server in rig.cluster.servers.values())
        assert called > 100  # it did get through to the objects
