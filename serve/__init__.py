"""Ray Serve deployments and HTTP around pipeline/. Start reading at app.py."""
