"""Runs as rows: a store in SQLite, a queue in it, and the processes that work it off. Nothing here imports torch
before a worker has begun.

Reading order:

1. ``database``    the file, its tables, and its failures as sentences
2. ``rows``        what a watcher gets back: a run, an event
3. ``changes``     live changes as the store keeps them
4. ``store``       what watchers do: submit, find, read, send, resume
5. ``lifecycle``   how a run changes hands: claimed, lost with its worker, given up
6. ``lease``       what the worker that holds a run may write
7. ``controls``    live messages, taken between updates and replayed after a restart
8. ``session``     one run from its claim to its end, with ``patience`` for a full disk
9. ``worker``, ``supervisor``   the processes
10. ``sweep``      many runs through the same store
"""
