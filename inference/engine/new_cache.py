"""The prefix cache of an engine, with its files if there is a folder for them, and as soon as that can be had."""

from __future__ import annotations

import logging
from collections.abc import Callable

from inference.config import EngineConfig
from inference.kernels.kv_storage import BlockStorage
from inference.kvcache.block_saver import BlockSaver
from inference.kvcache.disk_tier import DiskTier, DiskTierUnavailable
from inference.kvcache.keys import root_key
from inference.kvcache.prefix_cache import PrefixCache
from inference.kvcache.segment import KVIdentity
from inference.model.base import Model

logger = logging.getLogger(__name__)


RETRY_S = 10.0


def new_cache(
    model: Model, kv: BlockStorage, config: EngineConfig, *, template_fingerprint: str, clock: Callable[[], float]
) -> PrefixCache:
    """A cache over the pool kv, in memory only."""
    root = root_key(
        model_fingerprint=model.fingerprint, tokenizer_fingerprint=template_fingerprint, kv_format=kv.format_id
    )
    return PrefixCache(
        kv,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        root=root,
        is_enabled=config.is_prefix_cache_enabled,
        clock=clock,
    )


class DiskOpener:
    """Gives a cache its files, if config wants any. When the folder cannot be had, because another process has it say,
    the cache runs without, and retry() tries again. So it is when somebody removes the folder: it is begun anew.

    name: what people call the model.
    """

    def __init__(
        self,
        cache: PrefixCache,
        model: Model,
        kv: BlockStorage,
        config: EngineConfig,
        *,
        name: str,
        template_fingerprint: str,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._kv = kv
        self._root = config.kv_dir if config.is_prefix_cache_enabled and config.kv_disk_bytes else None
        self._max_bytes = config.kv_disk_bytes
        self._name = name
        self._label = f"{name}, {model.kernel_tier}, blocks of {config.block_size}"
        self._saver: BlockSaver | None = None
        self._before: BlockSaver | None = None  # whose folder was removed
        self._clock = clock
        self._retry_at = clock()
        self._identity = KVIdentity.of(
            model=model.fingerprint,
            tokenizer=template_fingerprint,
            kv_format=kv.format_id,
            kernel_tier=model.kernel_tier,
            block_size=config.block_size,
            bytes_per_token=kv.bytes_per_token,
        )
        self.retry()

    def retry(self) -> float | None:
        """Try, unless that was done a moment ago. In how many seconds to call again; None: there is nothing to try."""
        if self._root is None or (self._saver is not None and not self._saver.disk.is_gone()):
            return None
        if self._saver is not None:
            logger.warning("%s: the folder of KV files has been removed, and is begun anew", self._name)
            self._cache.close(0.0)
            self._before, self._saver = self._saver, None
            self._retry_at = self._clock()
        if (wait_s := self._retry_at - self._clock()) > 0:
            return wait_s
        try:
            disk = DiskTier(self._root, self._max_bytes, self._identity, label=self._label)
        except DiskTierUnavailable as error:
            if not self._cache.disk_problem:
                logger.warning("%s: no KV is kept on disk: %s", self._name, error)
            self._cache.disk_problem = str(error)
            self._retry_at = self._clock() + RETRY_S
            return RETRY_S
        self._saver = BlockSaver(disk, self._kv)
        if self._before is not None:
            self._saver.go_on_counting(self._before)
        self._cache.use_disk(self._saver)
        logger.info("%s: KV on disk in %d files, %d MB", self._name, disk.num_files, disk.num_bytes // 1_000_000)
        return 0.0
