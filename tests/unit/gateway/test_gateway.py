"""The gateway over real sockets: what curl sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from neve.gateway import server
from neve.proto import errors
from tests.unit.gateway.rig import running


async def test_put_get_head_and_delete() -> None:
    async with running() as rig:
        put = await rig.http.put("/v1/objects/a", content=b"hello")
        assert (put.status_code, put.json()["size_bytes"], put.json()["key"]) == (200, 5, "a")
        got = await rig.http.get("/v1/objects/a")
        assert (got.status_code, got.content) == (200, b"hello")
        assert got.headers["etag"] == put.headers["etag"] == put.json()["etag"]
        assert got.headers["content-length"] == "5"
        assert got.headers["x-neve-version"] == str(put.json()["version"])
        head = await rig.http.head("/v1/objects/a")
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "5")
        assert (await rig.http.delete("/v1/objects/a")).status_code == 204
        missing = await rig.http.get("/v1/objects/a")
        assert (missing.status_code, missing.json()["error"]) == (404, "NotFound")
        assert (await rig.http.delete("/v1/objects/a")).status_code == 404
        assert (await rig.http.head("/v1/objects/a")).status_code == 404


@pytest.mark.parametrize(
    "key",
    [
        b"a/b//c/",
        b"/",
        b"blank here",
        "ümlaut/雪".encode(),
        b"\x00\xff\xfe",
        b"line\nend",
        b"%2F",
        b"a?b#c",
        b"..",
        b"x/../y",
    ],
)
async def test_keys_of_any_bytes(key: bytes) -> None:
    async with running(split_keys=()) as rig:
        url = "/v1/objects/" + quote(key, safe="")
        url = url.replace(".", "%2E")
        assert (await rig.http.put(url, content=key)).status_code == 200
        assert rig.cluster.value(key) == key
        assert (await rig.http.get(url)).content == key
        listed = (await rig.http.get("/v1/objects")).json()["objects"]
        assert len(listed) == 1
        assert (await rig.http.get("/v1/objects/" + listed[0]["key"])).content == key


async def test_bad_keys_and_paths_are_clear_errors() -> None:
    async with running() as rig:
        empty = await rig.http.put("/v1/objects/", content=b"")
        assert (empty.status_code, empty.json()["error"]) == (400, "InvalidArgument")
        long = await rig.http.put("/v1/objects/" + "x" * 4097, content=b"")
        assert (long.status_code, long.json()["error"]) == (413, "TooLarge")
        assert (await rig.http.put("/v1/objects/" + "x" * 4096, content=b"")).status_code == 200
        nowhere = await rig.http.get("/v2")
        assert (nowhere.status_code, "docs" in nowhere.json()["message"]) == (404, True)
        wrong = await rig.http.post("/v1/objects/a", content=b"")
        assert wrong.status_code == 405
        assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT", "DELETE"}
        assert (await rig.http.put("/v1/objects/a?ttl_s=0", content=b"")).status_code == 400
        assert (
            await rig.http.put("/v1/objects/a", content=b"", headers={"Content-Range": "bytes 0-0/5"})
        ).status_code == 400


async def test_ranges() -> None:
    async with running() as rig:
        await rig.http.put("/v1/objects/a", content=b"0123456789")

        async def get(value: str, **more: str) -> httpx.Response:
            return await rig.http.get("/v1/objects/a", headers={"Range": value, **more})

        part = await get("bytes=2-4")
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
        assert (await get("bytes=-3")).content == b"789"
        assert (await get("bytes=8-")).content == b"89"
        none = await get("bytes=10-")
        assert (none.status_code, none.headers["content-range"]) == (416, "bytes */10")
        assert (await get("bytes=0-1,4-5")).status_code == 200
        tag = part.headers["etag"]
        assert (await get("bytes=2-4", **{"If-Range": tag})).status_code == 206
        assert (await get("bytes=2-4", **{"If-Range": '"other"'})).content == b"0123456789"


async def test_a_range_is_of_the_version_that_its_headers_tell() -> None:
    """The object is replaced between the look at its size and the read: the look is taken again."""
    async with running() as rig:
        await rig.http.put("/v1/objects/a", content=b"0123456789")
        server_one = rig.cluster.servers[1]
        values = [b"abcdefghijkl", b"ABCDEFGHIJKLMN"]

        def replace(key: bytes) -> None:
            if values:
                server_one.put_now(key, values.pop(0))

        server_one.after_head = replace
        part = await rig.http.get("/v1/objects/a", headers={"Range": "bytes=-4"})
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"KLMN", "bytes 10-13/14")
        assert part.headers["etag"] == (await rig.http.head("/v1/objects/a")).headers["etag"]


async def test_conditions() -> None:
    async with running() as rig:

        async def put(content: bytes, **headers: str) -> httpx.Response:
            return await rig.http.put(
                "/v1/objects/a",
                content=content,
                headers={name.replace("_", "-"): value for name, value in headers.items()},
            )

        assert (await put(b"0", If_Match="*")).status_code == 412  # there is none
        first = await put(b"1", If_None_Match="*")
        assert first.status_code == 201
        assert (await put(b"2", If_None_Match="*")).status_code == 412
        second = await put(b"2", If_Match=first.headers["etag"])
        assert second.status_code == 200
        stale = await put(b"3", If_Match=first.headers["etag"])
        assert (stale.status_code, stale.json()["error"]) == (412, "ConditionFailed")
        assert (await put(b"3", If_Match=f'"x", {second.headers["etag"]}')).status_code == 200
        assert (await put(b"4", If_Match="*")).status_code == 200
        newest = await put(b"5", If_None_Match='"x"')
        assert newest.status_code == 200
        assert (await put(b"6", If_None_Match=newest.headers["etag"])).status_code == 412
        assert (await put(b"6", If_Match="malformed")).status_code == 400
        tag = newest.headers["etag"]
        same = await rig.http.get("/v1/objects/a", headers={"If-None-Match": f"W/{tag}"})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        assert (await rig.http.head("/v1/objects/a", headers={"If-None-Match": tag})).status_code == 304
        assert (await rig.http.get("/v1/objects/a", headers={"If-Match": '"x"'})).status_code == 412
        assert (await rig.http.get("/v1/objects/a", headers={"If-Match": tag})).content == b"5"
        assert (await rig.http.delete("/v1/objects/a", headers={"If-Match": '"x"'})).status_code == 412
        assert (await rig.http.delete("/v1/objects/a", headers={"If-Match": tag})).status_code == 204


async def test_conditions_by_date() -> None:
    """The objects of this cluster are of 22:13:20 GMT."""
    same, before = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:19 GMT"
    async with running() as rig:
        url = "/v1/objects/a"
        created = await rig.http.put(url, content=b"1", headers={"If-Unmodified-Since": before})
        assert created.status_code == 201, "there is nothing that could have changed"
        assert (await rig.http.head(url)).headers["last-modified"] == same
        changed = {"If-Unmodified-Since": before}
        assert (await rig.http.put(url, content=b"2", headers=changed)).status_code == 412
        assert (await rig.http.delete(url, headers=changed)).status_code == 412
        assert (await rig.http.get(url, headers=changed)).status_code == 412
        assert (await rig.http.put(url, content=b"3", headers={"If-Unmodified-Since": same})).status_code == 200
        tag = (await rig.http.head(url)).headers["etag"]
        assert (await rig.http.get(url, headers={**changed, "If-Match": tag})).status_code == 200, "a tag says more"
        assert (await rig.http.get(url, headers={"If-Modified-Since": same})).status_code == 304
        assert (await rig.http.get(url, headers={"If-Modified-Since": before})).content == b"3"
        other = {"If-Modified-Since": same, "If-None-Match": '"other"'}
        assert (await rig.http.get(url, headers=other)).status_code == 200, "a tag says more"
        for no_date in ("", "yesterday", "2023-11-14"):
            assert (await rig.http.get(url, headers={"If-Modified-Since": no_date})).status_code == 200
        assert (await rig.http.put(url, content=b"4", headers={"If-Modified-Since": same})).status_code == 200


async def test_a_write_between_the_look_and_the_put_is_a_412() -> None:
    """The condition is the partition's to decide: here the object changes while the body arrives."""
    async with running() as rig:
        first = await rig.http.put("/v1/objects/a", content=b"1")

        async def body() -> AsyncIterator[bytes]:
            yield b"slow"
            await asyncio.sleep(0.1)
            assert (await rig.http.put("/v1/objects/a", content=b"2")).status_code == 200
            yield b"er"

        tag = f'"x", {first.headers["etag"]}'
        late = await rig.http.put("/v1/objects/a", content=body(), headers={"If-Match": tag})
        assert late.status_code == 412
        assert rig.cluster.value(b"a") == b"2"


async def test_lists_in_pages() -> None:
    async with running() as rig:
        keys = [f"p/{letter}{number:02}" for letter in "az" for number in range(10)]
        for key in keys:
            await rig.http.put(f"/v1/objects/{key}", content=key.encode())
        await rig.http.put("/v1/objects/other", content=b"")
        found: list[str] = []
        continuation = ""
        pages = 0
        while True:
            query = {"prefix": "p/", "limit": "7", **({"continuation": continuation} if continuation else {})}
            page = (await rig.http.get("/v1/objects", params=query)).json()
            found += [each["key"] for each in page["objects"]]
            pages += 1
            if not (continuation := page["continuation"]):
                break
        assert (found, pages) == (keys, 3)
        some = (await rig.http.get("/v1/objects?start=p/a05&end=p/a08")).json()["objects"]
        assert [each["key"] for each in some] == ["p/a05", "p/a06", "p/a07"]
        assert some[0]["size_bytes"] == 5
        for wrong in ("limit=0", "limit=x", "limit=10001", "continuation=zz", "limit=1&limit=2"):
            assert (await rig.http.get(f"/v1/objects?{wrong}")).status_code == 400, wrong


async def test_a_page_of_long_keys_ends_early_and_the_next_goes_on() -> None:
    async with running(list_bytes_max=2500) as rig:
        keys = [f"{number}" + "k" * 999 for number in range(7)]
        for key in keys:
            rig.cluster.servers[1].put_now(key.encode(), b"")
        first = (await rig.http.get("/v1/objects")).json()
        assert [each["key"] for each in first["objects"]] == keys[:3]
        second = (await rig.http.get("/v1/objects", params={"continuation": first["continuation"]})).json()
        assert [each["key"] for each in second["objects"]] == keys[3:6]
        last = (await rig.http.get("/v1/objects", params={"continuation": second["continuation"]})).json()
        assert ([each["key"] for each in last["objects"]], last["continuation"]) == (keys[6:], "")


async def test_values_stream_through_in_both_directions() -> None:
    size, piece = 30_000_000, bytes(range(256)) * 256

    async def body() -> AsyncIterator[bytes]:
        for _ in range(0, size, len(piece)):
            yield piece

    async with running() as rig:
        put = await rig.http.put("/v1/objects/big", content=body())
        expected = len(piece) * -(-size // len(piece))
        assert (put.status_code, put.json()["size_bytes"]) == (200, expected)
        assert "upload_part" in rig.cluster.servers[1].calls  # not collected first
        received = 0
        async with rig.http.stream("GET", "/v1/objects/big") as got:
            async for chunk in got.aiter_raw():
                received += len(chunk)
        assert received == expected
        part = await rig.http.get("/v1/objects/big", headers={"Range": "bytes=5000000-7000001"})
        assert part.content == (piece * 120)[5_000_000:7_000_002]


async def test_an_upload_that_breaks_off_or_stalls_leaves_nothing() -> None:
    async with running(idle_timeout_s=0.3) as rig:
        host, port = rig.gateway.http_address.split(":")

        async def begin() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PUT /v1/objects/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n" + bytes(2_000_000))
            await writer.drain()
            return reader, writer

        _, writer = await begin()
        writer.transport.abort()
        reader, writer = await begin()
        answer = await reader.readuntil(b"\r\n")
        assert answer == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()
        while rig.cluster.partition(b"a").uploads:
            await asyncio.sleep(0.01)
        assert rig.cluster.value(b"a") is None


async def test_an_upload_whose_partition_moves_is_to_be_tried_again() -> None:
    async with running() as rig:

        async def body() -> AsyncIterator[bytes]:
            yield bytes(3 << 20)
            while "upload_part" not in rig.cluster.servers[1].calls:
                await asyncio.sleep(0.01)
            rig.cluster.move(rig.cluster.partition(b"a"), 2)
            yield bytes(3 << 20)

        moved = await rig.http.put("/v1/objects/a", content=body())
        assert (moved.status_code, moved.headers["retry-after"]) == (503, "1"), "not 404: there is nothing to be found"
        assert moved.json()["outcome_unknown"] is False
        assert rig.cluster.value(b"a") is None


async def test_nothing_is_read_for_a_client_that_has_gone() -> None:
    async with running(part_bytes=100_000) as rig:
        home = rig.cluster.servers[1]
        home.put_now(b"a", bytes(40_000_000))
        host, port = rig.gateway.http_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/objects/a HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1000)
        writer.transport.abort()
        await rig.gateway.stop()  # when the request is over
        assert home.calls.count("get") < 300, "of 400 parts: what was on its way when the client left"


async def test_an_object_that_changes_under_a_long_answer_ends_it_short() -> None:
    async with running(part_bytes=100_000) as rig:
        await rig.http.put("/v1/objects/a", content=bytes(20_000_000))
        async with rig.http.stream("GET", "/v1/objects/a") as got:
            assert got.headers["content-length"] == "20000000"
            chunks = got.aiter_raw()
            await anext(chunks)
            await rig.http.put("/v1/objects/a", content=b"new")
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in chunks:
                    pass


async def test_trouble_in_the_cluster_is_told_as_such() -> None:
    async with running(operation_timeout_s=0.5) as rig:
        server_one = rig.cluster.servers[1]
        server_one.fail_before = [errors.Internal(detail="a bug over there")]
        broken = await rig.http.put("/v1/objects/a", content=b"1")
        assert (broken.status_code, broken.json()["outcome_unknown"]) == (500, True)
        rig.cluster.partition(b"a").server_id = 0
        rig.cluster.version += 1
        away = await rig.http.put("/v1/objects/a", content=b"1")
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        assert (await rig.http.get("/v1/objects/a")).status_code == 503


async def test_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice secret-a\n")
    async with running(token_file=tokens, token="secret-a") as rig:
        assert (await rig.http.put("/v1/objects/a", content=b"1")).status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret-a"}):
            async with httpx.AsyncClient(base_url=rig.url, headers=headers, trust_env=False) as stranger:
                for path in ("/v1/objects/a", "/v1/objects", "/v1/nowhere", "/%761/objects", "/v1%2Fobjects"):
                    refused = await stranger.get(path)
                    assert refused.status_code == 401
                    assert refused.headers["www-authenticate"].startswith("Bearer")
                assert (await stranger.put("/v1/objects/b", content=b"1")).status_code == 401
                assert (await stranger.get("/health")).status_code == 200
                assert (await stranger.get("/docs")).status_code == 200
        assert rig.cluster.value(b"b") is None
        tokens.write_text("alice secret-a\nbob secret-b\n")
        assert (await rig.http.get("/v1/objects/a", headers={"Authorization": "Bearer secret-b"})).status_code == 200


async def test_docs_metrics_and_health(tmp_path: Path) -> None:
    async with running() as rig:
        await rig.http.put("/v1/objects/a", content=b"12345")
        await rig.http.get("/v1/objects/a")
        await rig.http.get("/v1/objects/missing")
        page = await rig.http.get("/docs")
        assert "text/html" in page.headers["content-type"]
        assert "src=" not in page.text
        assert "://" not in page.text.replace("http://HOST", "")  # it needs no other host
        document = (await rig.http.get("/openapi.json")).json()
        for path, operations in document["paths"].items():
            for method in operations:
                assert f"{method.upper()}</span> {path}" in page.text
        assert (await rig.http.get("/health")).json()["kind"] == "gateway"
        async with httpx.AsyncClient(base_url=f"http://{rig.gateway.status_address}", trust_env=False) as status:
            metrics = (await status.get("/metrics")).text
            assert 'neve_gateway_requests_total{method="PUT",status="200"} 1.0' in metrics
            assert 'neve_gateway_requests_total{method="GET",status="404"} 1.0' in metrics
            assert "neve_gateway_received_bytes_total 5.0" in metrics
            assert "neve_gateway_requests_in_progress 0.0" in metrics
            assert (await status.get("/ready")).status_code == 200


async def test_stopping_lets_requests_in_flight_finish() -> None:
    async with running() as rig:
        rig.cluster.servers[1].delay_s = 0.5
        pending = asyncio.ensure_future(rig.http.put("/v1/objects/a", content=b"1"))
        while not rig.cluster.servers[1].calls:
            await asyncio.sleep(0.01)
        await rig.gateway.stop()
        assert (await pending).status_code == 200
        with pytest.raises(httpx.TransportError):
            await rig.http.get("/health")


def test_a_bad_configuration_names_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert server.main(["--set", "cluster=x", "--set", "manager=[]"]) == 2
    assert "managers" in capsys.readouterr().err
    assert server.main(["--set", "cluster=x", "--set", 'managers=["127.0.0.1:1"]', "--set", "listen.http=nowhere"]) == 2
    assert "listen" in capsys.readouterr().err
    code = server.main(
        ["--set", "cluster=x", "--set", 'managers=["127.0.0.1:1"]', "--set", "limits.operation_timeout_s=0.3"]
    )
    assert code == 1
    assert "no partition manager answers" in capsys.readouterr().err
