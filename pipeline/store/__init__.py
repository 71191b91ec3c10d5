"""Small versioned records that outlive a process: a file of this machine, or a Redis that every node sees.

store.py    what a store is
choose.py   open_store(): which one a URL means
sqlite.py   redis.py   the two
reserve.py  room on the disk, kept for the day it is full
mirror.py   one namespace in memory: what requests read, so that none of them waits for a store
"""
