# The app in one image: Python, the pinned requirements, the code. The model and all data live in the volume /data.
FROM python:3.11-slim-bookworm

# Output reaches the log at once; no .pyc files are written into the image at run time.
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1

# The app runs as a user of its own, who owns nothing but the data folder.
RUN useradd --system --uid 10001 --create-home recollect \
    && install -d -o recollect -g recollect -m 0700 /data

WORKDIR /app

# Requirements before code: a change of the code leaves this layer alone. Every one of them comes as a wheel, so no compiler is needed.
COPY requirements.txt .
RUN pip install --only-binary=:all: -r requirements.txt

COPY manage.py ./
COPY inference inference
COPY chatapp chatapp
COPY templates templates
COPY static static
COPY locale locale

# Static files under names with a digest, compressed. Settings want a data folder: this one is gone with the layer.
RUN RECOLLECT_DATA=/tmp/data python manage.py collectstatic --no-input --verbosity 0 && rm -rf /tmp/data

USER recollect
# Beyond loopback inside the container; which addresses reach it is decided where the port is published.
ENV RECOLLECT_DATA=/data RECOLLECT_HOST=0.0.0.0 RECOLLECT_PORT=8000
VOLUME /data
EXPOSE 8000

# Ready means: database reachable and migrated. The first start fetches the model and may take a minute.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz/ready', timeout=4)"]

# SIGTERM drains: running replies get a few seconds, then they are kept as interrupted.
STOPSIGNAL SIGTERM
CMD ["sh", "-c", "python manage.py fetch_model && python manage.py migrate --no-input && exec python manage.py serve"]
