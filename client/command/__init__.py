"""The command `stream-client`."""
