"""The `stream-client` command."""
