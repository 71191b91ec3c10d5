"""What was sampled once is not sampled again: the steps of a segment, kept under everything they follow from.

key.py               everything the steps follow from, as one name
serialization.py     steps as bytes: 10 bits per code, hidden states bit for bit where the vocoder reads them
memory.py            the tier of this process, bounded in bytes
redis.py             the tier all processes share, which may be away
invalidation.py      what has been purged, in every process
single_flight.py     one segment under way, for every request that needs it
cache.py             the tiers and the shared streams together
cached_generator.py  a CodeGenerator that looks there first
"""
