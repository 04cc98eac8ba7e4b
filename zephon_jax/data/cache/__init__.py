"""Copies of remote shards on local disk: made once, shared by processes, within a budget."""

__all__: list[str] = []
