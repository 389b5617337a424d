"""How static files get their names: with a digest of the content, so that browsers may keep them for ever."""

from __future__ import annotations

from whitenoise.storage import CompressedManifestStaticFilesStorage


class StaticStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # whitenoise is untyped
    """Also rewrites the imports between our ES modules, which Django leaves alone unless asked."""

    support_js_module_import_aggregation = True
