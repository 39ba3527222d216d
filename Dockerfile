# The daemon alone: no Spark, no tests, no compiler. tests/integration/test_dockerfile_steps.py runs
# the RUN lines of the first stage, the entry point and the health check, in a folder of its own.

FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements-build.lock requirements-server.lock ./
# What has no wheel is built with the pinned tools, whatever pip would take.
RUN python -m venv /build-env
RUN /build-env/bin/pip install --no-cache-dir --require-hashes -r requirements-build.lock
RUN /build-env/bin/pip wheel --no-cache-dir --use-pep517 --no-build-isolation --require-hashes --wheel-dir /wheels -r requirements-server.lock
COPY pyproject.toml README.md LICENSE ./
COPY protocol protocol
COPY coordinator coordinator
COPY client client
RUN /build-env/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .
RUN python -m venv /opt/group-coordinator
RUN /opt/group-coordinator/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim
COPY --from=build /opt/group-coordinator /opt/group-coordinator
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin coordinator \
    && install --directory --owner coordinator --mode 0700 /var/lib/group-coordinator
USER coordinator
VOLUME ["/var/lib/group-coordinator"]
# Metrics, health and the page, within the container only; the health check asks there, without Python's start-up.
ENV GROUP_COORDINATOR_HTTP_LISTENERS=127.0.0.1:9311
EXPOSE 9310 9311
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/${GROUP_COORDINATOR_HTTP_LISTENERS##*:} && printf 'GET /livez HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && read -r _ status _ <&3 && [[ $status == 200 ]]"]
ENTRYPOINT ["/opt/group-coordinator/bin/group-coordinator"]
CMD ["serve", "--listen", "0.0.0.0:9310", "--data-dir", "/var/lib/group-coordinator"]
