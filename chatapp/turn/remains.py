"""What is computed for a conversation after it has been deleted: the purge at its deletion came before that KV."""

from __future__ import annotations

from uuid import UUID

from chatapp import executors, llm, selectors


async def purge_if_gone(conversation_id: UUID) -> None:
    """For whoever has had something computed, however that ended. Raises StorageUnavailable."""
    if not await executors.database(selectors.conversation_exists, conversation_id):
        llm.purge(conversation_id)
