# The program and all that it needs to run every night: no compiler, a user without rights. Of its 800 MB pyarrow, scipy and pandas are half.
#   docker build -t ghcr.io/diagnose-training/diagnose:0.1.0 .
#   docker run --rm -v /traces:/traces:ro ghcr.io/diagnose-training/diagnose:0.1.0 /traces/job-7
FROM python:3.12-slim AS build
WORKDIR /src
# What others wrote is what was locked, by its digests: nothing is resolved here.
COPY deploy/requirements.txt deploy/build-requirements.txt deploy/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r deploy/build-requirements.txt \
    && python -m venv /opt/diagnose \
    && /opt/diagnose/bin/pip install --no-cache-dir --require-hashes -r deploy/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY rules rules
COPY diagnose diagnose
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/diagnose/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.12-slim
COPY --from=build /opt/diagnose /opt/diagnose
RUN useradd --uid 10001 --create-home diagnose
ENV PATH=/opt/diagnose/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib
USER 10001
WORKDIR /home/diagnose
ENTRYPOINT ["diagnose"]
CMD ["--help"]
