"""Protocols: one folder each, which translates it into what serve/speech does and registers it."""
