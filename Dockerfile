# dca serve: docker build -t dca-serve . (docs/serve.md says how to run it)
# For a release, name the base image by its digest, which is the same bytes for ever (docs/serve.md says how to find it):
# docker build --build-arg BASE=python:3.12-slim@sha256:... -t dca-serve .
ARG BASE=python:3.12-slim
FROM ${BASE}

RUN useradd --create-home --uid 1000 dca
WORKDIR /app
COPY pyproject.toml README.md LICENSE .ci/constraints.txt ./
COPY src ./src
# The usual builds of torch bring gigabytes of GPU libraries; name an index with CPU builds to leave them out:
# docker build --build-arg PIP_EXTRA_INDEX_URL=ADDRESS -t dca-serve .
ARG PIP_EXTRA_INDEX_URL
# The versions that the tests run with.
RUN pip install --no-cache-dir -c constraints.txt '.[serve]'

USER dca
# Nothing is fetched at run time; features that a server computes stay in memory.
ENV HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
EXPOSE 8080
VOLUME /models
ENTRYPOINT ["dca", "serve", "--host", "0.0.0.0", "--port", "8080"]
CMD ["/models/model.dca"]
