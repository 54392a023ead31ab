"""Reading extents in Spark: planning at one revision, and tasks that read files or nodes."""
