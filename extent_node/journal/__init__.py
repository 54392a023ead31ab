"""The journal, and the group commit that makes appends durable through it or in place."""
