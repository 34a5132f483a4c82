# The command line in a container, for the CPU; data and models come in through /data:
#   docker build --tag annotated-transformer .
#   docker run --rm --interactive --volume "$PWD":/data annotated-transformer translate --model everyday-de-en
FROM python:3.11-slim

# The small build of torch, in the version that everything was tested with
COPY requirements.txt /tmp/
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
    "$(grep --only-matching --extended-regexp '^torch==[0-9.]+' /tmp/requirements.txt)"

COPY README.md LICENSE CITATION.cff MANIFEST.in pyproject.toml /book/
COPY tools/requirements /book/tools/requirements
COPY annotated_transformer /book/annotated_transformer
RUN pip install --no-cache-dir --constraint /tmp/requirements.txt "/book[wmt14,export]"

# Files that it writes belong to the user who runs it: docker run --user "$(id -u):$(id -g)"
ENV ANNOTATED_TRANSFORMER_CACHE=/data/.cache HF_HOME=/data/.cache/huggingface SACREBLEU=/data/.cache/sacrebleu
WORKDIR /data
ENTRYPOINT ["annotated-transformer"]
