# The front door alone: what serves, without the simulator's libraries. docs/deployment.md says how it
# was tried. Another base: --build-arg BASE=…, a Debian whose python3 is 3.11 or newer.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates
WORKDIR /src
COPY lock/serve.txt lock/serve.txt
RUN python3 -m venv /opt/frontdoor \
    && /opt/frontdoor/bin/pip install --no-cache-dir --no-deps --require-hashes -r lock/serve.txt
COPY . .
# What it was installed with is not needed to run it.
RUN /opt/frontdoor/bin/pip install --no-cache-dir --no-deps . \
    && /opt/frontdoor/bin/pip uninstall --yes setuptools pip

FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 ca-certificates \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
        /usr/share/doc /usr/share/man /usr/share/python-wheels \
        /usr/lib/python3*/lib2to3 /usr/lib/python3*/pydoc_data \
    && mkdir -p /etc/frontdoor /var/lib/frontdoor \
    && chown 10001:10001 /var/lib/frontdoor
COPY --from=build /opt/frontdoor /opt/frontdoor
ENV PATH=/opt/frontdoor/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/frontdoor
EXPOSE 8080 8010
# Drains, as after SIGTERM: give it longer than server.drain_timeout_s (docker stop --time 60).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["frontdoor", "health", "http://127.0.0.1:8080"]
ENTRYPOINT ["frontdoor"]
CMD ["serve", "--config", "/etc/frontdoor/frontdoor.toml", "--listen", "0.0.0.0:8080"]
