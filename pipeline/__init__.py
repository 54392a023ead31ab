"""PySpark: the neve data source, and the GC, scrub and usage jobs.

    from neve.pipeline.source import register
    register(spark)
    spark.read.format("neve").option("managers", "127.0.0.1:3401").option("stream", "events").load()

docs/spark.md has the options, the columns and the jobs.
"""
