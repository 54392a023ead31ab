"""The example in docs/formats/wire.md is what the code sends and accepts."""

from __future__ import annotations

import re
from pathlib import Path

from neve.proto import diagnostics_pb2, methods
from neve.rpc.wire.frame import PRELUDE_BYTES, Kind, check_body, decode_prelude, encode

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "wire.md"


def test_the_worked_example_of_the_wire_format_is_true() -> None:
    section = PAGE.read_text().split("## A worked example")[1]
    block = section.split("```")[1]
    example = bytes.fromhex("".join(re.findall(r"\b[0-9a-f]{2}\b", block)))
    message = diagnostics_pb2.EchoRequest(text="hi").SerializeToString()
    head = encode(
        Kind.REQUEST,
        call_id=7,
        method_id=methods.DIAGNOSTICS_ECHO.method_id,
        timeout_ms=1000,
        message=message,
        attachment=[b"snow"],
        attachment_bytes=4,
    )
    assert example == head + b"snow"
    prelude = decode_prelude(example[:PRELUDE_BYTES], 100, 100)
    assert (prelude.call_id, prelude.timeout_ms, prelude.kind) == (7, 1000, Kind.REQUEST)
    check_body(prelude, example[PRELUDE_BYTES : PRELUDE_BYTES + prelude.message_bytes], b"snow")


def test_the_page_lists_every_frame_kind() -> None:
    text = PAGE.read_text()
    assert [kind.name for kind in Kind if f"| {kind.value} | {kind.name} |" not in text] == []
