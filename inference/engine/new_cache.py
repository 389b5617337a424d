"""The prefix cache of an engine, with its files if there is a folder for them."""

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


def new_cache(
    model: Model,
    kv: BlockStorage,
    config: EngineConfig,
    *,
    name: str,
    template_fingerprint: str,
    clock: Callable[[], float],
) -> PrefixCache:
    """A cache over the pool kv. When the folder cannot be had, because another process has it say, it runs without.

    name: what people call the model.
    """
    saver, problem = None, ""
    if config.is_prefix_cache_enabled and config.kv_dir is not None and config.kv_disk_bytes:
        identity = KVIdentity.of(
            model=model.fingerprint,
            tokenizer=template_fingerprint,
            kv_format=kv.format_id,
            kernel_tier=model.kernel_tier,
            block_size=config.block_size,
            bytes_per_token=kv.bytes_per_token,
        )
        label = f"{name}, {model.kernel_tier}, blocks of {config.block_size}"
        try:
            disk = DiskTier(config.kv_dir, config.kv_disk_bytes, identity, label=label)
        except DiskTierUnavailable as error:
            logger.warning("%s: no KV is kept on disk: %s", name, error)
            problem = str(error)
        else:
            saver = BlockSaver(disk, kv)
            logger.info("%s: KV on disk in %d files, %d MB", name, disk.num_files, disk.num_bytes // 1_000_000)
    root = root_key(
        model_fingerprint=model.fingerprint, tokenizer_fingerprint=template_fingerprint, kv_format=kv.format_id
    )
    return PrefixCache(
        kv,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        root=root,
        is_enabled=config.is_prefix_cache_enabled,
        saver=saver,
        disk_problem=problem,
        clock=clock,
    )
