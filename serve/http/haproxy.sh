#!/bin/sh
# Ray Serve starts this as its HAProxy (RAY_SERVE_HAPROXY_BINARY_PATH); see haproxy.py beside it.
exec "${CHATTTS_PYTHON:-python3}" -P -m serve.http.haproxy "$@"
