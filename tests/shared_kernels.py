"""One folder of compiled kernels for all processes that tests start: each would compile for a quarter of a minute."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "var" / "kernels"
BESIDE_THE_SOURCE = ROOT / "inference" / "kernels" / "jit" / "__pycache__" / "kernels"  # of who names no folder


def share_kernels(data: Path) -> None:
    """Lets a data folder keep its kernels in the developer's own."""
    _link(data / "kernels")


def share_default_kernels() -> None:
    """The same for engines that are told of no folder."""
    BESIDE_THE_SOURCE.parent.mkdir(exist_ok=True)
    _link(BESIDE_THE_SOURCE)


def _link(place: Path) -> None:
    KERNELS.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # there already
        place.symlink_to(KERNELS, target_is_directory=True)
