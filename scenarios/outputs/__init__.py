"""What ``--json`` writes, as models; the JSON schema is derived from them, and tests hold real outputs to them."""
