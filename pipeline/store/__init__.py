"""Small versioned records that outlive a process: a file of this machine, or a Redis that every node sees.

store.py    the protocol of a store
open.py     open_store(): the store of a URL
sqlite.py   redis_store.py   the two; redis_url.py, redis_scripts.py and redis_link.py are parts of the second
reserve.py  disk space kept back for a full disk
mirror.py   one namespace in memory, which requests read without waiting for a store
poll.py     refreshes mirrors again and again
threads.py  where stores are asked; breaker.py: so that one caller waits for a store that hangs
"""
