"""How much memory and disk there is to share out, and how much memory this process has."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_STATM = Path("/proc/self/statm")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes(limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Memory of this machine, or what a container is allowed of it."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in limits:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:  # not in a container of that kind
            continue
        if text.isdigit():  # else "max"
            found = min(found, int(text))
    return found


def resident_bytes(statm: Path = _STATM) -> int:
    """Memory that the system has given to this process; 0 where it does not say."""
    try:
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def free_disk_bytes(folder: Path) -> int:
    """What may still be written to the disk under a folder. Raises OSError."""
    return shutil.disk_usage(folder).free
