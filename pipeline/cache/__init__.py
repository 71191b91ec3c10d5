"""What was sampled once is not sampled again: the steps of a segment, kept under everything they follow from.

key.py       what they follow from, as a name
pack.py      steps as bytes: 10 bits a code, hidden states bit for bit where the vocoder reads them
memory.py    the tier of this process, bounded in bytes
redis.py     the tier all processes share, which may be away
epochs.py    what has been purged, everywhere
flights.py   one segment under way, for all who asked for it
cache.py     the tiers and the flights together
steps.py     a CodeGenerator that looks there first
"""
