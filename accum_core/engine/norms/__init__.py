"""One file a layer kind; ``accum_core.engine.normalization`` finds and uses them.

Each file gives literal constants (read without torch by ``accum_core.catalogue``):

- ``TITLE``: the name to show; ``SUMMARY``: one clause on what it looks at
- ``ORDER``: place in lists; ``BATCH_INDEPENDENT``: whether a sample's output is independent of the others
- ``OPTIONS``, if any: option of ``build`` -> field of ``RunConfig`` that sets it

and three functions: ``build(source, **options)`` makes the layer that stands in for ``source``, ``owns(module)`` says
whether a layer is of this kind, and ``failure(module, shape, training)`` says in one clause why it cannot work on
an input of that shape in training (or evaluation) mode, or None.
"""
