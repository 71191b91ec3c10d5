"""Authentication, quotas and admission: which requests are served."""
