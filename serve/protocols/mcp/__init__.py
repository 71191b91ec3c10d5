"""MCP: the service as tools of agents, over HTTP and over stdio."""
