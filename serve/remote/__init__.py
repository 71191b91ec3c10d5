"""The domain's protocols over Ray handles; the only folder that calls .remote."""
