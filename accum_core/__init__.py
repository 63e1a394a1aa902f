"""Gradient accumulation, right to the last digit.

Reading order:

1. ``batching``    which samples make a micro-batch and a window
2. ``reduction``, ``loss_scaling``   what divides what, and what comes of it, without a network
3. ``engine.accumulate``, ``engine.window``, ``engine.objectives``   the one loop and the losses it adds up
4. ``engine.reference``   the full batch that the loop is held against
5. ``engine.tolerant``, ``engine.cached``, ``engine.recompute``   windows that go wrong, that have no parts, that are
   too large
6. ``engine.windows``, ``engine.update``   cut what yields micro-batches, and step: a loop of one's own in five lines
7. ``schedule``, ``scaling``   the learning rate of each update, and what to change with the effective batch
8. ``engine.norms``, ``engine.instruments``, ``engine.workloads``, ``engine.models``   one file each
9. ``run_config``, ``engine.training``   the generator that steps, records and takes live changes
10. ``records``, ``epochs``, ``statistics``, ``claims``, ``experiment``   what a run leaves and what follows from it;
    ``noise_scale``, ``noise_course``, ``steps_to_target``   how much accumulation pays
11. ``runs``        the store, the queue and the workers
12. ``quantities``, ``palette``   numbers and colours as people see them, in the app and in reports
13. ``pitfalls``    loops that go wrong beside loops that do not, as cards that can be run

Only ``engine`` imports torch.
"""
