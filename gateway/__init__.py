"""The HTTP gateway: objects for everything that speaks HTTP. `server.py` is the process."""
