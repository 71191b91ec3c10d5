"""OpenAI's protocol, and the service's own routes in its style."""
