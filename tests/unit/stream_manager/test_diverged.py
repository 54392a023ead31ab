"""Replicas with different bytes of one extent, which should never be: what the seal does about it (rules 7 and 20)."""

from __future__ import annotations

from tests.unit.extent_node.store_rig import block_of
from tests.unit.stream_manager.nodes_rig import BLOCKS, BYTES, Rig, simulated

OTHERS = [block_of(f"other {number}", len(block) - len(BLOCKS[0]) + 60) for number, block in enumerate(BLOCKS)]


@simulated
async def test_a_replica_with_other_bytes_is_not_confirmed_and_made_anew_from_the_others() -> None:
    async with Rig() as rig:
        await rig.start_nodes(1, 2, 3)
        stream_id = await rig.make_stream(nodes=(1, 2, 3), blocks=[])
        extent = rig.tail(stream_id)
        await rig.append(extent, 0, OTHERS, nodes=(1,))
        await rig.append(extent, 0, BLOCKS, nodes=(2, 3))
        assert len(rig.bytes_on(1, extent.extent_id)) == len(BYTES)
        assert rig.bytes_on(1, extent.extent_id) != BYTES
        await rig.seal(stream_id)
        await rig.until(lambda: bool(rig.extent(extent.extent_id).confirmed))
        assert rig.extent(extent.extent_id).confirmed == (2, 3)
        await rig.until(lambda: rig.extent(extent.extent_id).all_confirmed)
        rig.check_equal(extent.extent_id)
        assert rig.bytes_on(1, extent.extent_id) == BYTES
