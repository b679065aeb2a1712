# The project with its pinned packages, for KubeRay (cluster/kuberay.yaml) and Apptainer (cluster/apptainer.def).
#
#   docker build -t ctvr .                                          the pinned build of torch: CUDA 13, driver >= 580
#   docker build -t ctvr-cpu --build-arg TORCH_BACKEND=cpu .        without CUDA
#   docker build -t ctvr-cu126 --build-arg TORCH_BACKEND=cu126 .    for older drivers
#
# torch's wheels carry CUDA's libraries, so the base is Python alone; the driver comes from the machine.
#
# A tag moves. `docker buildx imagetools inspect python:3.11-slim-bookworm` prints today's digest; to fix the base, write
# ARG BASE=python:3.11-slim-bookworm@sha256:DIGEST
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

ARG TORCH_BACKEND=
ENV PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true \
    PATH=/opt/ctvr/bin:$PATH VIRTUAL_ENV=/opt/ctvr

# KubeRay's probes of Ray's pods call wget; services.sh and slurm.sbatch look for processes. NCCL opens the InfiniBand
# libraries at run time: without them it uses sockets, and says so only at NCCL_DEBUG=INFO
RUN apt-get update && apt-get install -y --no-install-recommends wget procps \
    libibverbs1 ibverbs-providers librdmacm1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 ctvr && mkdir /data && chown ctvr /data

WORKDIR /home/ctvr/src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY ctvr ctvr
COPY orchestrator orchestrator
COPY methods methods
COPY search_spaces search_spaces
COPY cluster cluster
# Compiled here, because the processes may not write into /opt/ctvr and would compile in memory every time.
# With another build of torch the pins of the CUDA libraries are left out: they belong to the pinned build
RUN python -m venv /opt/ctvr && pip install -q --no-cache-dir "$(grep '^uv==' constraints.txt)" \
    && if [ -n "$TORCH_BACKEND" ]; then \
         grep -Eiv '^(nvidia-|cuda-|triton)' constraints.txt >/tmp/pins && set -- --torch-backend "$TORCH_BACKEND" -c /tmp/pins; \
       else set -- -c constraints.txt; fi \
    && uv pip install -q --no-cache --compile-bytecode "$@" -e '.[all]' 'Flask-WTF~=1.2' boto3 \
    && python -c "import ctvr.orchestrator.cli.main, ray, torch; from ctvr import methods" \
    && python -m compileall -q ctvr orchestrator methods search_spaces && chown -R ctvr /home/ctvr

USER ctvr
ENV CTVR_RUNS=/data/runs
ENTRYPOINT []
CMD ["ctvr", "--help"]
