"""The four Ray Serve deployments; the only folder with @serve.deployment."""
