"""Forms of the pages about accounts, and of the small changes to a conversation. Validation only; services write."""
