"""A notebook-style tour of Neve on Spark: paste it cell by cell, or run it whole against a cluster.

neve up                                        # in another terminal: a local cluster
python examples/spark_scan.py --managers 127.0.0.1:3401 --disks '.neve/*/disk*'
"""

# %% a stream to look at
from __future__ import annotations

import argparse
import json
import random

from neve.client import SyncClient
from neve.client.command.options import connection_options
from neve.pipeline.session import open_session

parser = argparse.ArgumentParser(description="A tour of Neve on Spark.", parents=[connection_options()])
parser.add_argument("--master", default="local[2]", help="any Spark master")
parser.add_argument("--disks", default="", help="patterns of folders with nodes' disks on this machine")
args = parser.parse_args()

# %% Spark first: it forks to start Java, which a process that has used gRPC should not do
with open_session(args.master, "neve tour") as spark:
    from pyspark.sql import functions as F  # noqa: N812

    with SyncClient(args.managers, cluster=args.cluster, token=args.token) as neve:
        stream = neve.create_stream(extent_bytes_max=256 << 10)
        with neve.writer(stream.id) as writer:
            for _ in range(20):
                clicks = [{"user": random.randrange(50), "ms": random.randrange(2_000)} for _ in range(1_000)]
                writer.append_many([json.dumps(click).encode() for click in clicks])

    where = {"managers": ",".join(args.managers), "cluster": args.cluster, "stream": str(stream.id)}
    if args.disks:
        where["disks"] = args.disks

    # %% what there is, without reading a byte of it: the indexes of sealed extents say where blocks are
    blocks = spark.read.format("neve").options(**where).load()
    blocks.groupBy("extent_id").agg(F.count("*").alias("blocks"), F.sum("length").alias("bytes")).show()

    # %% the records themselves, as a table
    payloads = spark.read.format("neve").options(**where, columns="extent_id,offset,payload").load()
    click = F.from_json(F.col("payload").cast("string"), "user int, ms int").alias("click")
    by_user = payloads.select(click).select("click.*").groupBy("user").agg(F.count("*").alias("clicks"), F.avg("ms"))
    by_user.orderBy(F.desc("clicks")).show(5)

    # %% every replica by itself: are they all sound?
    replicas = spark.read.format("neve").options(**where, rows="replicas", verify="true").load()
    replicas.groupBy("node_id", "verdict").agg(F.count("*").alias("replicas"), F.sum("bytes_read")).show()

    # %% the extents' metadata, all of one revision
    extents = spark.read.format("neve").options(**where, rows="extents").load()
    extents.select("revision", "extent_id", "sealed", "length", "node_ids").show()
    print(f"{blocks.count()} records in stream {stream.id}")
