"""Words of Unfold's templates. Unfold brings no translations, so those that our pages show are in our own catalogue.

Only read by `make messages`, which takes msgids from source; nothing imports this.
"""

from __future__ import annotations

from django.utils.translation import gettext_noop as _

WORDS = (
    _("Add row"),
    _("All applications"),
    _("Apply Filters"),
    _("By %(filter_title)s"),
    _("Cancel"),
    _("Choose file to upload"),
    _("Click to cancel"),
    _("Dark"),
    _("Date from"),
    _("Date to"),
    _("Expand row"),
    _("False"),
    _("From"),
    _("General"),
    _("Go back"),
    _("Light"),
    _("Loading more results..."),
    _("More actions"),
    _("Next"),
    _("No data"),
    _("No recent searches"),
    _("No results found"),
    _("No results matching your query"),
    _("Please correct the error below."),
    _("Previous"),
    _("Recent searches"),
    _("Reset filters"),
    _("Return to site"),
    _("Run"),
    _("Search apps and models..."),
    _("Select action"),
    _("Select action to run"),
    _("Select all rows"),
    _("Select record"),
    _("Select value"),
    _("Submit"),
    _("System"),
    _("This item will be deleted."),
    _("This page yielded into no results. Create a new item or reset your filters."),
    _("To"),
    _("Toggle password visibility"),
    _("True"),
    _("Type to search"),
    _("Value"),
    _("Welcome"),
)
