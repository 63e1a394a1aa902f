"""Does a framework compute the large batch's gradient? The cases, the trials, the verdicts and the table of results.

Nothing here imports torch when it is imported; trials run in processes of their own.
"""
