# The service's image, for processors (--target cpu) and for NVIDIA's GPUs (--target cuda):
#   docker build --target cpu  -t expunge:cpu  .
#   docker build --target cuda -t expunge:cuda .
# What is built holds no keys and no settings: those come as files when a container starts.

# deploy/pin-images brings its digest, and those of the compose file, up to date.
ARG PYTHON=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# The wheels of PyTorch with CUDA bring CUDA along; the host brings the driver.
FROM ${PYTHON} AS installer
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/expunge
ENV PATH=/opt/expunge/bin:$PATH
WORKDIR /source
COPY constraints.txt requirements.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --only-binary :all: --require-hashes --requirement requirements.lock

# Which build of PyTorch is right depends on the machine, so its version alone is fixed.
FROM installer AS torch-cpu
ARG TORCH_INDEX_CPU=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt --index-url "${TORCH_INDEX_CPU}" torch

FROM installer AS torch-cuda
ARG TORCH_INDEX_CUDA=https://download.pytorch.org/whl/cu126
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt --index-url "${TORCH_INDEX_CUDA}" torch

FROM torch-cpu AS build-cpu
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY workers workers
COPY demo demo
COPY expunge expunge
COPY migrations migrations
COPY docs/how-to/regulators.md docs/how-to/
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

FROM torch-cuda AS build-cuda
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY workers workers
COPY demo demo
COPY expunge expunge
COPY migrations migrations
COPY docs/how-to/regulators.md docs/how-to/
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${PYTHON} AS runtime
RUN groupadd --gid 10001 expunge \
    && useradd --uid 10001 --gid expunge --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin expunge \
    && install -d -m 0700 -o expunge -g expunge /var/lib/expunge /var/lib/expunge-keys
# The root file system may be read-only: nothing but /tmp and the two volumes is written to.
ENV PATH=/opt/expunge/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    OMP_WAIT_POLICY=PASSIVE \
    EXPUNGE_HOST=0.0.0.0 \
    EXPUNGE_PORT=8100 \
    EXPUNGE_DATA_DIR=/var/lib/expunge \
    EXPUNGE_KEY_STORE_DIR=/var/lib/expunge-keys
WORKDIR /tmp
VOLUME ["/var/lib/expunge", "/var/lib/expunge-keys"]
EXPOSE 8100
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-m", "app.runtime.processes.health", "api"]
ENTRYPOINT ["expunge"]
CMD ["serve"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/expunge /opt/expunge

FROM runtime AS cpu
COPY --from=build-cpu /opt/expunge /opt/expunge
