"""Doors that speak no HTTP, each with a listener of its own and a translation into what serve/speech does."""
