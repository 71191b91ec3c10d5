"""FastAPI: middleware, routes, schemas and the streaming response. Knows no Ray."""
