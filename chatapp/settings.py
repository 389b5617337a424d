"""All settings, in one file. What differs between installations comes from the environment through env.py.

RECOLLECT_* settings bear the name of their variable; the README's table lists them with their defaults.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from django.urls import reverse_lazy

from chatapp import databases, env, keys, machine
from chatapp.default_model import DEFAULT_MODEL

BASE_DIR = Path(__file__).resolve().parent.parent

# --- the data folder: everything that must survive an upgrade lies in it ----------------------------------------------

RECOLLECT_DATA = env.path("RECOLLECT_DATA", BASE_DIR / "var")
try:
    RECOLLECT_DATA.mkdir(mode=0o700, parents=True, exist_ok=True)
except OSError as error:
    raise ImproperlyConfigured(
        f"RECOLLECT_DATA is {RECOLLECT_DATA}, and that folder cannot be made: {error}"
    ) from error
RECOLLECT_KEYS = RECOLLECT_DATA / "keys"

# --- model and engine (legal ranges as in inference.config.EngineConfig) ----------------------------------------------

RECOLLECT_MODEL = env.path("RECOLLECT_MODEL", RECOLLECT_DATA / "models" / DEFAULT_MODEL.filename)
RECOLLECT_BLOCK_SIZE = env.integer("RECOLLECT_BLOCK_SIZE", 16, low=1, high=1024)
RECOLLECT_POOL_TOKENS = env.integer(
    "RECOLLECT_POOL_TOKENS", 16_384, low=256, high=1 << 31
)  # the engine takes less, but then no question and its reply fit
# What all loaded models may take together, weights and pools. The default leaves a quarter to everything else.
RECOLLECT_MODEL_MEMORY = env.num_bytes("RECOLLECT_MODEL_MEMORY", machine.memory_bytes() * 3 // 4, low=1_000_000)
RECOLLECT_MAX_BATCH_TOKENS = env.integer("RECOLLECT_MAX_BATCH_TOKENS", 512, low=1, high=1 << 20)
RECOLLECT_MAX_RUNNING = env.integer("RECOLLECT_MAX_RUNNING", 8, low=1, high=1024)
RECOLLECT_MAX_WAITING = env.integer("RECOLLECT_MAX_WAITING", 32, low=0, high=1 << 20)
RECOLLECT_MAX_MODEL_LEN = env.integer(
    "RECOLLECT_MAX_MODEL_LEN", 0, low=0, high=1 << 26
)  # 0: what the model was made for
RECOLLECT_THREADS = env.integer("RECOLLECT_THREADS", 0, low=0, high=1024)  # 0: one per core
RECOLLECT_KERNELS = env.choice(
    "RECOLLECT_KERNELS", "auto", ("auto", "amx", "avx512", "avx2", "neon", "generic", "numpy")
)
RECOLLECT_PREFIX_CACHE = env.boolean("RECOLLECT_PREFIX_CACHE", True)
RECOLLECT_TITLES = env.boolean("RECOLLECT_TITLES", True)
# Files of cached KV, of all models together; 0: none are written. A share of what is free shrinks as they grow: they
# come to rest at a fifth of what was free without them.
RECOLLECT_KV_DISK_BYTES = env.num_bytes(
    "RECOLLECT_KV_DISK_BYTES", min(4 << 30, machine.free_disk_bytes(RECOLLECT_DATA) // 4), low=0, high=1 << 50
)

# --- the context window -----------------------------------------------------------------------------------------------

# Shares of what a prompt may have: past the first, the oldest turns leave, until the second is reached.
RECOLLECT_WINDOW_TRIGGER = env.share("RECOLLECT_WINDOW_TRIGGER", 0.85)
RECOLLECT_WINDOW_TARGET = env.share("RECOLLECT_WINDOW_TARGET", 0.55)
if RECOLLECT_WINDOW_TARGET >= RECOLLECT_WINDOW_TRIGGER:
    raise ImproperlyConfigured(
        f"RECOLLECT_WINDOW_TARGET is {RECOLLECT_WINDOW_TARGET}; legal are shares below RECOLLECT_WINDOW_TRIGGER, "
        f"which is {RECOLLECT_WINDOW_TRIGGER}"
    )
RECOLLECT_RECENT_TOKENS = env.integer("RECOLLECT_RECENT_TOKENS", 2048, low=64, high=1 << 26)
RECOLLECT_SUMMARY_TOKENS = env.integer("RECOLLECT_SUMMARY_TOKENS", 256, low=32, high=1 << 20)
RECOLLECT_RECALL_TOKENS = env.integer("RECOLLECT_RECALL_TOKENS", 512, low=0, high=1 << 26)
RECOLLECT_EMBEDDINGS = env.text("RECOLLECT_EMBEDDINGS")  # a folder, or "minilm"; "": off. checks.py looks into it

# --- where it listens, and who may come -------------------------------------------------------------------------------

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


RECOLLECT_HOST = env.host("RECOLLECT_HOST", "127.0.0.1")
RECOLLECT_PORT = env.integer("RECOLLECT_PORT", 8000, low=0, high=65_535)  # 0: any free one
RECOLLECT_ROOT_PATH = env.text("RECOLLECT_ROOT_PATH").rstrip("/")
if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", RECOLLECT_ROOT_PATH):
    raise ImproperlyConfigured(f"RECOLLECT_ROOT_PATH is {RECOLLECT_ROOT_PATH!r}; legal are '' and paths like '/chat'")
RECOLLECT_HTTPS = env.boolean("RECOLLECT_HTTPS", False)
RECOLLECT_SIGNUP = env.boolean("RECOLLECT_SIGNUP", False)
RECOLLECT_REDIS_URL = env.text("RECOLLECT_REDIS_URL")
if RECOLLECT_REDIS_URL and not RECOLLECT_REDIS_URL.startswith(("redis://", "rediss://", "unix://")):
    raise ImproperlyConfigured("RECOLLECT_REDIS_URL has another scheme; legal are redis://, rediss:// and unix://")

RECOLLECT_METRICS_TOKEN = env.secret("RECOLLECT_METRICS_TOKEN")  # none: /metrics is for staff with a session only

_ALLOWED_HOSTS = env.host_patterns("RECOLLECT_ALLOWED_HOSTS")
ALLOWED_HOSTS = list(dict.fromkeys([*_LOOPBACK_NAMES, *_ALLOWED_HOSTS]))
if RECOLLECT_HOST not in ("0.0.0.0", "::", *ALLOWED_HOSTS):  # noqa: S104 -- compared, not bound
    ALLOWED_HOSTS.append(f"[{RECOLLECT_HOST}]" if ":" in RECOLLECT_HOST else RECOLLECT_HOST)
RECOLLECT_IS_EXPOSED_BY_NAME = not all(_is_loopback(host) for host in ALLOWED_HOSTS)
# Others than the person at this machine can reach the server, perhaps through a proxy: the set-up link needs its token.
RECOLLECT_IS_EXPOSED = RECOLLECT_IS_EXPOSED_BY_NAME or RECOLLECT_HTTPS or not _is_loopback(RECOLLECT_HOST)

# --- Django -----------------------------------------------------------------------------------------------------------

DEBUG = env.boolean("RECOLLECT_DEBUG", False)
SECRET_KEY = env.text("RECOLLECT_SECRET_KEY") or keys.secret_key(RECOLLECT_KEYS)
ROOT_URLCONF = "chatapp.urls"
ASGI_APPLICATION = "chatapp.asgi.application"
AUTH_USER_MODEL = "chatapp.User"

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # before the admin, whose templates it replaces; the site is ours (apps.AdminConfig)
    "unfold.contrib.filters",
    "chatapp.apps.AdminConfig",
    "chatapp.apps.ChatConfig",
    "django.contrib.auth",
    "django.contrib.humanize",  # thousands apart in the admin's numbers
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "chatapp.middleware.ContentPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "chatapp.middleware.UserLanguageMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "chatapp.views.errors.ChatErrorMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# --- storage ----------------------------------------------------------------------------------------------------------

DATABASES = {
    "default": databases.from_url(env.text("DATABASE_URL"), default=RECOLLECT_DATA / "recollect.sqlite3"),
}

if RECOLLECT_REDIS_URL:
    CHANNEL_LAYERS: dict[str, Any] = {
        "default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [RECOLLECT_REDIS_URL]}}
    }
    CACHES: dict[str, Any] = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": RECOLLECT_REDIS_URL}
    }
else:
    # Right for one process, which is what `serve` starts: hints between tabs, and the counters of wrong passwords.
    CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    CACHES = {
        "default": {
            "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
            "OPTIONS": {"MAX_ENTRIES": 100_000},  # the default of 300 would let a flood of names push the counters out
        }
    }

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "chatapp.static_storage.StaticStorage"
    },
}
WHITENOISE_USE_FINDERS = DEBUG
WHITENOISE_AUTOREFRESH = DEBUG

# --- accounts ---------------------------------------------------------------------------------------------------------

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "conversation_new"
LOGOUT_REDIRECT_URL = "login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- cookies and headers ----------------------------------------------------------------------------------------------

_COOKIE_PATH = f"{RECOLLECT_ROOT_PATH}/"
# A browser accepts a __Host- cookie only from a secure page and for the whole host.
_COOKIE_PREFIX = ("__Host-" if _COOKIE_PATH == "/" else "__Secure-") if RECOLLECT_HTTPS else ""
FORCE_SCRIPT_NAME = RECOLLECT_ROOT_PATH or None
SESSION_COOKIE_NAME = f"{_COOKIE_PREFIX}sessionid"
SESSION_COOKIE_PATH = _COOKIE_PATH
SESSION_COOKIE_SECURE = RECOLLECT_HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = f"{_COOKIE_PREFIX}csrftoken"
CSRF_COOKIE_PATH = _COOKIE_PATH
CSRF_COOKIE_SECURE = RECOLLECT_HTTPS
CSRF_COOKIE_HTTPONLY = True  # scripts take the token from the page
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "chatapp.views.errors.csrf_failure"
LANGUAGE_COOKIE_PATH = _COOKIE_PATH
LANGUAGE_COOKIE_SECURE = RECOLLECT_HTTPS
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"  # not no-referrer: over TLS Django's CSRF check reads it
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
# TLS ends at a proxy, which must set X-Forwarded-Proto itself; RECOLLECT_HTTPS says that it does.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if RECOLLECT_HTTPS else None
SECURE_SSL_REDIRECT = RECOLLECT_HTTPS
SECURE_REDIRECT_EXEMPT = [r"^healthz/"]  # a health check comes from inside, past the proxy
SECURE_HSTS_SECONDS = 31_536_000 if RECOLLECT_HTTPS else 0
# What lies below the host name, and lists inside browsers, are for whoever owns the domain to decide.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

_STRICT_POLICY: dict[str, Any] = {
    "default-src": [NONE],
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF, "data:"],
    "font-src": [SELF],
    "connect-src": [SELF],
    "manifest-src": [SELF],
    "worker-src": [SELF],
    "form-action": [SELF],
    "base-uri": [NONE],
    "frame-ancestors": [NONE],
}
CONTENT_SECURITY_POLICY = {"DIRECTIVES": _STRICT_POLICY}
# Only on pages of the admin, which need a session of staff. Unfold evaluates its Alpine expressions (hence unsafe-eval)
# and writes its theme colours into the page as <style> and style="" (hence unsafe-inline for styles); inline scripts
# stay forbidden.
ADMIN_CONTENT_SECURITY_POLICY = _STRICT_POLICY | {
    "script-src": [SELF, UNSAFE_EVAL],
    "style-src": [SELF, UNSAFE_INLINE],
}

# --- language and time ------------------------------------------------------------------------------------------------

LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]  # each in its own words: a person finds the own one
LANGUAGE_CODE = env.choice("RECOLLECT_LANGUAGE", "en", [code for code, _name in LANGUAGES])
LOCALE_PATHS = [BASE_DIR / "locale"]
FORMAT_MODULE_PATH = "chatapp.formats"
USE_I18N = True
USE_TZ = True
TIME_ZONE = env.text("RECOLLECT_TIME_ZONE", "UTC")
if TIME_ZONE not in available_timezones():
    raise ImproperlyConfigured(
        f"RECOLLECT_TIME_ZONE is {TIME_ZONE!r}; legal are the names of the IANA database, like UTC and Asia/Shanghai"
    )

# --- log: one line a record on stderr; ids and numbers, never the text of a message -----------------------------------

RECOLLECT_LOG_LEVEL = env.choice("RECOLLECT_LOG_LEVEL", "INFO", ["DEBUG", "INFO", "WARNING", "ERROR"])
LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "chatapp.logs.LineFormatter"}},
    "filters": {"not_ready": {"()": "chatapp.logs.NotReadyFilter"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": RECOLLECT_LOG_LEVEL},
    "loggers": {
        "django": {"handlers": [], "level": RECOLLECT_LOG_LEVEL, "propagate": True},
        "django.request": {"filters": ["not_ready"]},
        # At DEBUG it would log every statement with its parameters, and these are texts of people.
        "django.db.backends": {"level": "INFO"},
        "httpx2": {"level": "WARNING"},  # at INFO a line for each request of fetch_model
    },
}

# --- the admin's look -------------------------------------------------------------------------------------------------

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Recollect",
    "SITE_HEADER": "Recollect",
    "SITE_SYMBOL": "forum",
    "SITE_URL": reverse_lazy("conversation_new"),
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("icons/favicon.svg")}],
    "STYLES": [lambda _request: static("css/admin-tables.css")],
    "COLORS": {
        "primary": {  # shades of the accent in static/css/tokens.css
            "50": "#eefaf7",
            "100": "#d5f2eb",
            "200": "#aee4d9",
            "300": "#7bd3c5",
            "400": "#5cc4b4",
            "500": "#35a293",
            "600": "#0d6a61",
            "700": "#09534c",
            "800": "#08443f",
            "900": "#073833",
            "950": "#04211e",
        },
    },
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": False,
        "navigation": "chatapp.admin.navigation.groups",
    },
}
