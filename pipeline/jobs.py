"""The common parts of the jobs: the command line, the session, the options of their scans, the report of a failure.

Invariants: a user's mistake, a cluster that does not answer and a failed Spark job end in a sentence and an exit code;
            a job that could not read everything says so and exits with 1;
            what is read of a cluster in use may be deleted under it: then all is read anew, some times (`read_whole`).
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from neve.client.command.failures import CommandFailed, guarded
from neve.client.command.options import connection_options, etcd_access, etcd_options, label, tls_files
from neve.meta.etcd.config import EtcdTls
from neve.pipeline.progress import JobProgress
from neve.pipeline.scan import options
from neve.pipeline.scan.options import ScanOptions
from neve.pipeline.session import MASTER_DEFAULT, open_session
from neve.proto.errors import Compacted, NeveError, NotFound
from neve.rpc.command_line import parsed
from neve.rpc.tls import TlsFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Job = Callable[["JobContext"], int]
T = TypeVar("T")
ERROR_CHARS_MAX = 600
READS_MAX = 4  # of a cluster that changes under the reading
READ_PAUSE_S = 0.5  # before the second; twice as long before each further one
OVERTAKEN = "during the scan"  # is in each of our own errors that say so

# Matches a Neve error in Spark's report of a failed task: the last line of the Python traceback.
_OUR_ERROR = re.compile(r"neve\.proto\.errors\.(\w+): ([^\n]*)")


def job_parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m neve.pipeline.{name}", description=description, parents=[connection_options(), etcd_options()]
    )
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", default=MASTER_DEFAULT, help=f"any Spark master (default: {MASTER_DEFAULT})")
    group.add_argument(
        "--conf", type=label, action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; repeatable"
    )
    group.add_argument(
        "--disks",
        default="",
        metavar="PATTERN,…",
        help=f"folders where workers may find nodes' disks and read files themselves (default: "
        f"${options.DISKS_VARIABLE})",
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout, for scripts")
    return parser


class JobContext:
    """The resources of a running job."""

    def __init__(self, args: argparse.Namespace, spark: SparkSession, progress: JobProgress) -> None:
        self.args = args
        self.spark = spark
        self.progress = progress
        tls, etcd = tls_files(args) or TlsFiles(), etcd_access(args)
        etcd_tls = etcd.tls or EtcdTls()
        said = {
            "managers": ",".join(args.managers),
            "cluster": args.cluster,
            "token": args.token,
            "disks": args.disks,
            "ca": tls.ca,
            "cert": tls.cert,
            "key": tls.key,
            "etcdCa": etcd_tls.ca_file,
            "etcdCert": etcd_tls.cert_file,
            "etcdKey": etcd_tls.key_file,
            "etcdUser": etcd.user,
            "etcdPassword": etcd.password,
        }
        self._said = {name: str(value) for name, value in said.items() if value}
        self.options: ScanOptions = options.parse(self._said)

    def load(self, **more: object) -> DataFrame:
        """A scan of the data source, of this job's cluster."""
        said = {**self._said, **{name: str(value) for name, value in more.items()}}
        return self.spark.read.format("neve").options(**said).load()


def run_job(name: str, parser: argparse.ArgumentParser, arguments: Sequence[str] | None, job: Job) -> int:
    args = parsed(parser, arguments)

    def run() -> int:
        with open_session(args.master, f"neve {name}", settings=dict(args.conf)) as spark:
            from py4j.protocol import Py4JError
            from pyspark.errors import PySparkException

            try:
                with JobProgress(spark, name) as progress:
                    return job(JobContext(args, spark, progress))
            except (PySparkException, Py4JError) as error:  # the latter of a worker that is gone, or Java itself
                raise CommandFailed(sentence(str(error))) from error

    return guarded(parser.prog, run, managers=args.managers)


def read_whole(context: JobContext, read: Callable[[], T]) -> T:
    """What `read` gives, which reads everything at one revision and changes nothing.

    Owners go on meanwhile: an extent of that revision may be gone before it is read. That is no fault, and nothing may
    be concluded from the rest: everything is read again, at a newer revision.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for turn in range(READS_MAX):
        if turn:
            context.progress.step("the cluster has changed; reading it again")
            time.sleep(READ_PAUSE_S * 2 ** (turn - 1))
        try:
            return read()
        except (NeveError, PySparkException, Py4JError) as error:
            if not is_overtaken(error):
                raise
            last = sentence(str(error)) if not isinstance(error, NeveError) else str(error)
    raise CommandFailed(
        f"the cluster has changed under each of {READS_MAX} readings ({last}); "
        "run it again when less is going on, or let deleted extents stay longer (manager.collecting.grace_s)"
    )


def is_overtaken(error: Exception) -> bool:
    """Whether something that stood at the revision of the scan was gone, or changed, when it was read."""
    if isinstance(error, NeveError):
        return OVERTAKEN in str(error) or isinstance(error, Compacted) or _is_extent(error)
    ours = _OUR_ERROR.findall(str(error))
    return any(
        OVERTAKEN in words or name == Compacted.__name__ or (name == NotFound.__name__ and "such extent" in words)
        for name, words in ours[-1:]
    )


def _is_extent(error: NeveError) -> bool:
    return isinstance(error, NotFound) and error.kind == "extent"


def sentence(text: str) -> str:
    """The part of a Spark failure to show to the user: a Neve error if it contains one."""
    ours = _OUR_ERROR.findall(text)
    if ours:
        name, words = ours[-1]
        return f"a task failed: {name}: {words}"[:ERROR_CHARS_MAX]
    return f"Spark failed: {' '.join(text.split())}"[:ERROR_CHARS_MAX]
