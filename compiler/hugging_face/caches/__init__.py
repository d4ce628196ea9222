"""What layers cache, and where `KvCache` writes it."""
