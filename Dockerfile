# The image: it speaks with the demo voice where it runs, and is the head and every worker in k8s/. No other weights are in it.
#   docker build -t chattts-serve:0.4.0 .
#   docker run --init --read-only --tmpfs /tmp --shm-size=1g --stop-timeout 90 -p 127.0.0.1:8000:8000 chattts-serve:0.4.0
# For GPUs: --build-arg EXTRAS=torch, and docker run --gpus all.
# Pin the base by digest in your own build: --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

ARG EXTRAS=
LABEL org.opencontainers.image.title="chattts-serve" \
      org.opencontainers.image.licenses="AGPL-3.0-or-later"

# g++ compiles the native code below, and Triton's launchers at a start; wget is what KubeRay's probes call.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ wget && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 1000 --gid 100 --create-home ray && install -d -o 1000 -g 100 /data

# The packages: built anew only when their versions change.
WORKDIR /home/ray/chattts-serve
COPY pyproject.toml constraints.txt Makefile README.md LICENSE NOTICE k8s/requirements.txt k8s/requirements-torch.txt ./
# By hash: a file that is not the one the tests ran with is refused. For another index, or a proxy with a certificate of its own:
# docker build --secret id=pip,src=pip.conf --secret id=ca,src=ca.pem, with `cert = /run/secrets/ca` in that pip.conf.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca \
    for list in requirements ${EXTRAS:+requirements-${EXTRAS}}; do \
        pip install --no-cache-dir --require-hashes --no-deps --requirement "${list}.txt" || exit 1; \
    done

# The project: root's, so that the user of the service cannot change it.
COPY pipeline pipeline
COPY serve serve
COPY configs configs
COPY chattts_serve.py ./
# Editable: the project is installed once, in this folder, where the manifests name its files.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
 && python -m compileall -q pipeline serve && python -m serve.commands.launch.ship

# numpy's threads would take the cores from the native code's.
ENV OPENBLAS_NUM_THREADS=1 PYTHONUNBUFFERED=1 CHATTTS_HOME=/data CHATTTS_LOG=-
# What outlives the container: fetched weights, keys and voices, the configuration that the entry point has chosen.
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=180s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
USER 1000:100
ENTRYPOINT ["python", "-m", "serve.commands.launch.container"]
