"""The whole service in one process: the domain's protocols without Ray."""
