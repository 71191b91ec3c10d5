"""Keeps the sampled steps of a segment under a key of everything that affects them, so that none is sampled twice.

key.py               everything that affects the steps, as one digest
serialization.py     steps as bytes: 10 bits per code, hidden states bit for bit where the vocoder reads them
redis_tier.py        the tier that all processes share, which may be unreachable
invalidation.py      counts purges, in every process
single_flight.py     one segment in progress, for every request that needs it
cache.py             the tier of this process, the tiers and the shared streams together
cached_generator.py  a CodeGenerator that looks there first
"""
