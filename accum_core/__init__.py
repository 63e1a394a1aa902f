"""Gradient accumulation, right to the last digit.

Reading order:

1. ``batching``    which samples make a micro-batch and a window
2. ``reduction``   what divides what
3. ``engine.accumulate``, ``engine.objectives``   the one loop and the losses it adds up
4. ``engine.reference``   the full batch that the loop is held against
5. ``engine.norms``, ``engine.instruments``, ``engine.workloads``, ``engine.models``   one file each
6. ``engine.training``   the generator that steps, records and takes live changes
7. ``records``, ``statistics``, ``claims``, ``experiment``   what a run leaves and what follows from it
8. ``runs``        the store, the queue and the workers

Only ``engine`` imports torch.
"""
